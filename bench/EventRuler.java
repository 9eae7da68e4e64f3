import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import software.amazon.event.ruler.Machine;

/**
 * AWS event-ruler, for bench_rules.py: matches the events of a file with the rules of another one.
 *
 * Arguments: the two files, of a JSON object in each line.  A rule's name is the number of its line.
 * Writes the names that match each event, as a JSON array.  Then, for each line of the input, which is
 * "parsed N" or "text N", matches all events N times and writes the CPU nanoseconds of the process.
 */
class EventRuler {
    public static void main(String[] arguments) throws Exception {
        Machine machine = new Machine();
        int name = 0;
        for (String rule : Files.readAllLines(Path.of(arguments[0]))) {
            machine.addRule(String.valueOf(name++), rule);
        }
        List<String> texts = Files.readAllLines(Path.of(arguments[1]));
        ObjectMapper mapper = new ObjectMapper();
        List<JsonNode> events = new ArrayList<>();
        List<List<String>> found = new ArrayList<>();
        for (String text : texts) {
            events.add(mapper.readTree(text));
            found.add(machine.rulesForJSONEvent(text));
        }
        System.out.println(mapper.writeValueAsString(found));
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] order = line.split(" ");
            int times = Integer.parseInt(order[1]);
            long matches = 0;
            long began = system.getProcessCpuTime();
            for (int n = 0; n < times; n++) {
                if (order[0].equals("text")) {
                    for (String text : texts) {
                        matches += machine.rulesForJSONEvent(text).size();
                    }
                } else {
                    for (JsonNode event : events) {
                        matches += machine.rulesForJSONEvent(event).size();
                    }
                }
            }
            System.out.println((system.getProcessCpuTime() - began) + " " + matches);
        }
    }
}
