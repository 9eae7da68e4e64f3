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
import java.util.Map;
import software.amazon.event.ruler.Machine;

/**
 * AWS event-ruler, for bench_rules.py: matches the events of a file with the rules of another one.
 *
 * Arguments: the two files, of a JSON object in each line.  A rule's name is the number of its line.
 * Writes a JSON object: the names that match each event ("found"), the number of "rules", and the CPU
 * "nanoseconds" and the "bytes" that they took.  Then, for each line of the input, which is "parsed N" or
 * "text N", matches all events N times and writes the CPU nanoseconds of the process.
 */
class EventRuler {
    public static void main(String[] arguments) throws Exception {
        Machine machine = new Machine();
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = used();
        long start = system.getProcessCpuTime();
        int count = 0;
        try (BufferedReader rules = Files.newBufferedReader(Path.of(arguments[0]))) {
            for (String rule = rules.readLine(); rule != null; rule = rules.readLine()) {
                machine.addRule(String.valueOf(count++), rule);
            }
        }
        long added = system.getProcessCpuTime() - start;
        long grown = used() - before;
        List<String> texts = Files.readAllLines(Path.of(arguments[1]));
        ObjectMapper mapper = new ObjectMapper();
        List<JsonNode> events = new ArrayList<>();
        List<List<String>> found = new ArrayList<>();
        for (String text : texts) {
            events.add(mapper.readTree(text));
            found.add(machine.rulesForJSONEvent(text));
        }
        System.out.println(mapper.writeValueAsString(
            Map.of("found", found, "rules", count, "nanoseconds", added, "bytes", grown)));
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

    /** Returns the bytes of the heap that are in use, after a collection. */
    private static long used() {
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }
}
