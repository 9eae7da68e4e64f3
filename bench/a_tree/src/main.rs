//! The crate a-tree, for bench_rules.py: matches the events of a file with the rules of another one.
//!
//! It speaks the protocol of EventRuler.java.  An event is a JSON object, whose fields go to a-tree one by one.

use a_tree::{ATree, AttributeDefinition};
use cpu_time::ProcessTime;
use serde_json::{json, Value};
use std::io::{self, BufRead, BufReader};

/// The fields that rules name: JSON pointers, and the names with `_` for each sign.
const FIELDS: [(&str, &str); 4] = [
    ("/region", "region"),
    ("/detail-type", "detail_type"),
    ("/detail/order/currency", "detail_order_currency"),
    ("/detail/customer/id", "detail_customer_id"),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut lines =
        || BufReader::new(std::fs::File::open(arguments.next().unwrap()).unwrap()).lines();
    let (rules, events) = (lines(), lines());
    let definitions = FIELDS.map(|(_, name)| AttributeDefinition::string(name));
    let mut tree = ATree::<usize>::new(&definitions).unwrap();
    let (before, began) = (resident(), ProcessTime::now());
    let mut count = 0;
    for rule in rules {
        tree.insert(&count, &rule.unwrap()).unwrap();
        count += 1;
    }
    let (added, grown) = (began.elapsed(), resident() - before);
    let texts: Vec<String> = events.map(Result::unwrap).collect();
    let parsed: Vec<Value> = texts
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    let found: Vec<Vec<usize>> = parsed.iter().map(|event| matching(&tree, event)).collect();
    println!(
        "{}",
        json!({"found": found, "rules": count, "nanoseconds": added.as_nanos() as u64, "bytes": grown})
    );
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let (form, times) = line.split_once(' ').unwrap();
        let began = ProcessTime::now();
        let mut matches = 0;
        for _ in 0..times.parse().unwrap() {
            if form == "text" {
                matches += texts
                    .iter()
                    .map(|text| matching(&tree, &serde_json::from_str(text).unwrap()).len())
                    .sum::<usize>();
            } else {
                matches += parsed
                    .iter()
                    .map(|event| matching(&tree, event).len())
                    .sum::<usize>();
            }
        }
        println!("{} {}", began.elapsed().as_nanos(), matches);
    }
}

/// The rules that match an event.
fn matching(tree: &ATree<usize>, event: &Value) -> Vec<usize> {
    let mut builder = tree.make_event();
    for (pointer, name) in FIELDS {
        builder
            .with_string(name, event.pointer(pointer).unwrap().as_str().unwrap())
            .unwrap();
    }
    let event = builder.build().unwrap();
    tree.search(&event)
        .unwrap()
        .matches()
        .iter()
        .map(|&&rule| rule)
        .collect()
}

/// The private bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<usize> = text
        .split(' ')
        .take(3)
        .map(|number| number.parse().unwrap())
        .collect();
    (pages[1] - pages[2]) * 4096
}
