//! `explain`: a collective or a way to stay in step, step by step.

use ringstep_comm::{Algorithm, Op};
use serde_json::Value;

use super::{Place, read};

const EXAMPLE: &str = "--values 3,7,1,9;4,2,8,5;6,0,3,2;1,8,5,7";

#[test]
fn a_ring_in_six_rounds() {
    let text = Place::new().ok(&format!("explain ring --workers 4 --op max {EXAMPLE}"));
    assert!(!text.contains('\x1b'), "no colour in a pipe");
    assert!(text.starts_with("ring all-reduce, 4 workers, max of 4 values each\n"), "{text}");
    let rounds: Vec<&str> = text.lines().filter(|line| line.starts_with("Round ")).collect();
    let phases = ["share-reduce", "share-reduce", "share-reduce", "share-only", "share-only", "share-only"];
    let expected = phases.iter().enumerate().map(|(at, phase)| format!("Round {} of 6, {phase}", at + 1));
    assert_eq!(rounds, expected.collect::<Vec<_>>());
    let first = "Round 1 of 6, share-reduce
  worker 0 -> worker 1: chunk 0 (3)
  worker 1 -> worker 2: chunk 1 (2)
  worker 2 -> worker 3: chunk 2 (3)
  worker 3 -> worker 0: chunk 3 (7)

  worker 0  [3] [7] [1] [9]
  worker 1  [4] [2] [8] [5]
  worker 2  [6] [2] [3] [2]
  worker 3  [1] [8] [5] [7]
";
    assert!(text.contains(first), "{text}");
    for worker in 0..4 {
        assert_eq!(last_row(&text, worker), "[6]*[8]*[8]*[9]*");
    }
    let closing = "6 steps = 2(p-1), 48 bytes sent by each worker = 2(p-1)/p x 32 bytes (p = 4)";
    assert_eq!(text.lines().last(), Some(closing));
}

#[test]
fn every_algorithm_ends_with_the_closed_form() {
    let place = Place::new();
    for algorithm in Algorithm::ALL {
        for workers in 2..=9usize {
            // Worker r has the values r+1, r+2, ..., r+5.
            let row = |rank: usize| (1..=5).map(|index| (rank + index).to_string()).collect::<Vec<_>>().join(",");
            let rows = (0..workers).map(row).collect::<Vec<_>>().join(";");
            for op in Op::ALL {
                let text = place.ok(&format!("explain {} --op {} --values {rows}", algorithm.name(), op.name()));
                let result: Vec<f64> = (1..=5).map(|first| closed_form(op, first, workers)).collect();
                for rank in 0..workers {
                    let row = last_row(&text, rank);
                    let finished = row.matches(']').count();
                    assert_eq!(row.matches("]*").count(), finished, "{row}");
                    let values: Vec<f64> = row
                        .split(['[', ']', '*', ' '])
                        .filter(|word| !word.is_empty())
                        .map(|word| word.parse().unwrap())
                        .collect();
                    assert_eq!(values, result, "{algorithm:?} {op:?}, worker {rank} of {workers}");
                }
                let (steps, bytes) = steps_and_bytes(algorithm, workers);
                let closing = text.lines().last().unwrap();
                assert_eq!(text.matches("\nRound ").count(), steps, "{closing}");
                let start = if steps == 1 { "1 step,".to_owned() } else { format!("{steps} steps = ") };
                assert!(closing.starts_with(&start), "{closing}");
                assert!(closing.contains(&format!(", {bytes} bytes ")), "{closing}, not {bytes}");
            }
        }
    }
}

/// What `first`, `first` + 1, ... of so many workers become.
fn closed_form(op: Op, first: usize, workers: usize) -> f64 {
    let all = first..first + workers;
    match op {
        Op::Sum => all.sum::<usize>() as f64,
        Op::Mean => all.sum::<usize>() as f64 / workers as f64,
        Op::Max => (first + workers - 1) as f64,
        Op::Min => first as f64,
        Op::Product => all.product::<usize>() as f64,
    }
}

/// Steps, and bytes of the busiest worker, for five values of eight bytes.
fn steps_and_bytes(algorithm: Algorithm, workers: usize) -> (usize, usize) {
    let (floor, ceil) = (workers.ilog2() as usize, workers.next_power_of_two().ilog2() as usize);
    let power = 1 << floor;
    let extra = usize::from(power < workers);
    // All but the two smallest chunks that follow each other, if those that do the work are so many.
    let chunks = |count: usize| (0..count).map(|index| 5 / count + usize::from(index < 5 % count)).collect::<Vec<_>>();
    match algorithm {
        Algorithm::GatherScatter => (2 * (workers - 1), 40 * (workers - 1)),
        Algorithm::Tree => (2 * ceil, 40 * ceil),
        Algorithm::Ring => {
            let chunks = chunks(workers);
            let pair = (0..workers).map(|at| chunks[at] + chunks[(at + 1) % workers]).min().unwrap();
            (2 * (workers - 1), 8 * (10 - pair))
        }
        Algorithm::RecursiveDoubling => (floor + 2 * extra, 40 * (floor + extra)),
        Algorithm::HalvingDoubling => {
            // Halving sends all but the own chunk, doubling each window that has been collected.
            let chunks = chunks(power);
            let sent = |at: usize| {
                let window = |size: usize| chunks[at / size * size..][..size].iter().sum::<usize>();
                5 - window(1) + (0..floor).map(|bit| window(1 << bit)).sum::<usize>()
            };
            // Of those that also serve another, the busiest; they come first.
            let helpers = if extra == 1 { workers - power } else { power };
            let most = (0..helpers).map(sent).max().unwrap() + 5 * extra;
            let others = (helpers..power).map(sent).max().unwrap_or(0);
            (2 * floor + 2 * extra, 8 * most.max(others))
        }
        Algorithm::Direct => (1, 40),
        Algorithm::Hierarchical => (2 * workers.div_ceil(2), 40 * workers.div_ceil(2)),
        #[cfg(feature = "mpi")]
        Algorithm::Mpi => unreachable!("it is no schedule that could be explained"),
    }
}

/// What a worker holds in the end.
fn last_row(text: &str, worker: usize) -> &str {
    let names = [format!("  worker {worker}  "), format!("  worker {worker}a  "), format!("  worker {worker}b  ")];
    text.lines().rev().find_map(|line| names.iter().find_map(|name| line.strip_prefix(name.as_str()))).unwrap()
}

#[test]
fn workers_and_values_have_defaults() {
    let place = Place::new();
    assert!(place.ok("explain tree").starts_with("tree all-reduce, 4 workers, sum of 4 values each\n"));
    assert!(place.ok("explain tree --workers 16").starts_with("tree all-reduce, 16 workers, sum of 16 values each\n"));
    let text = place.ok("explain ring --values -1;2;-3.5");
    assert!(text.starts_with("ring all-reduce, 3 workers, sum of 1 value each\n"), "{text}");
    assert!(text.contains("worker 1 -> worker 2: an empty chunk\n"), "{text}");
    assert_eq!(last_row(&text, 0), "[-2.5]*");
}

#[test]
fn shared_memory_and_hosts_are_explained() {
    let place = Place::new();
    let text = place.ok("explain direct --workers 3");
    assert!(text.contains("Nothing is sent"), "{text}");
    assert!(text.contains("worker 0 <- all others: all\n"), "{text}");
    let text = place.ok(&format!("explain hierarchical --op mean {EXAMPLE}"));
    assert!(text.contains("Round 2 of 4, reduce between hosts\n  worker 0a -> worker 2b: "), "{text}");
    assert!(text.contains("divided by 4"), "{text}");
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let place = Place::new();
    assert_eq!(place.ok(&format!("explain ring --op max {EXAMPLE} --html page.html")), "Page: page.html\n");
    let page = read(place.path("page.html"));
    assert!(!page.contains("{{") && page.ends_with("</html>\n"));
    // The one address in it is the name of a namespace.
    assert_eq!(page.replace("http://www.w3.org/2000/svg", "").matches("://").count(), 0);
    for word in ["<link", "src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    let (_, rest) = page.split_once(r#"<script type="application/json" id="film">"#).unwrap();
    let film: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let frames = film["frames"].as_array().unwrap();
    assert_eq!(frames.len(), 7);
    assert_eq!(frames[0]["values"][0], serde_json::json!(["3", "7", "1", "9"]));
    assert_eq!(frames[1]["moves"][0], serde_json::json!({"from": 0, "to": 1, "start": 0, "values": ["3"]}));
    assert_eq!(frames[6]["values"], serde_json::to_value([["6", "8", "8", "9"]; 4]).unwrap());
    assert_eq!(frames[6]["finished"], serde_json::to_value([[true; 4]; 4]).unwrap());
}

/// With a staleness of 1, who is fast is ahead by a step and then waits; without, it does not get so far.
#[test]
fn a_worker_that_is_ahead_waits() {
    let place = Place::new();
    let text = place.ok("explain stale --workers 3 --staleness 1");
    assert!(text.starts_with("stale, 3 workers, staleness 1\n"), "{text}");
    let tick = text.split("\n\nTick 2 of 8\n").nth(1).unwrap();
    let waits = "  worker 0 -> server: 1.8333 for step 1
  worker 1 -> server: 1.5 for step 1
  worker 0 must wait for step 0 of worker 2
  worker 1 must wait for step 0 of worker 2
";
    assert!(tick.starts_with(waits), "{tick}");
    let synchronous = place.ok("explain parameter-server");
    assert!(synchronous.contains("\nTick 1 of 6\n  worker 0 -> server: 2.6667 for step 0\n"), "{synchronous}");
    assert!(synchronous.contains("  worker 0 must wait for step 0 of worker 2\n"), "{synchronous}");
    // Without staleness, stale is parameter-server.
    let after_title =
        |text: &str| text.split_once("\nStart\n").unwrap().1.rsplit_once("\n6 ticks: ").unwrap().0.to_owned();
    assert_eq!(after_title(&place.ok("explain stale --staleness 0")), after_title(&synchronous));
    assert!(!place.ok("explain async").contains("must wait"));
}

#[test]
fn every_way_has_a_text_and_a_page() {
    let place = Place::new();
    for way in ["parameter-server", "stale", "async", "local-sgd", "diloco", "sma", "int8", "top-k", "power-sgd"] {
        for workers in [2, 6] {
            let text = place.ok(&format!("explain {way} --workers {workers}"));
            assert!(text.starts_with(&format!("{way}, {workers} workers")), "{text}");
            assert_eq!(place.ok(&format!("explain {way} --workers {workers} --html page.html")), "Page: page.html\n");
            let page = read(place.path("page.html"));
            assert!(!page.contains("{{") && !page.contains("://") && page.ends_with("</html>\n"));
            let (_, rest) = page.split_once(r#"<script type="application/json" id="film">"#).unwrap();
            let film: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
            for frame in film["frames"].as_array().unwrap() {
                assert!(text.contains(&format!("\n{}\n", frame["title"].as_str().unwrap())), "{frame}");
                assert!(frame["tables"].as_array().is_some_and(|tables| !tables.is_empty()), "{frame}");
            }
        }
    }
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let place = Place::new();
    let names = "gather-scatter, tree, ring, recursive-doubling, halving-doubling, direct, hierarchical, parameter-server, stale, \
                 async, local-sgd, diloco, sma, int8, top-k, power-sgd";
    let many = vec!["1"; 65].join(",");
    for (arguments, error) in [
        ("rign", format!("unknown algorithm or way 'rign': known are {names}; nearest is 'ring'").as_str()),
        ("stail", format!("unknown algorithm or way 'stail': known are {names}; nearest is 'stale'").as_str()),
        ("stale --op sum", "--op says nothing about stale: it knows --workers, --staleness"),
        ("sma --values 1;2", "--values says nothing about sma: it knows --workers"),
        ("ring --rank 1", "--rank says nothing about ring: it knows --workers, --op, --values"),
        ("stale --workers 0", "0 workers: 2 to 6 can be shown of stale"),
        ("int8 --workers 7", "7 workers: 2 to 6 can be shown of int8"),
        ("stale --staleness 7", "--staleness 7: 0 to 6 can be shown"),
        ("local-sgd --every 0", "--every 0: 1 to 8 can be shown"),
        ("top-k --keep 0", "--keep 0: it must be above 0 and at most 1"),
        ("top-k --keep nan", "--keep NaN: it must be above 0 and at most 1"),
        ("power-sgd --rank 5", "--rank 5: 1 to 4 can be shown"),
        ("sma --html no/where.html", "no/where.html: No such file or directory (os error 2)"),
        ("ring --op maen", "unknown operation 'maen': known are sum, mean, max, min, product; nearest is 'mean'"),
        ("ring --workers 1", "1 worker: 2 to 16 can be shown"),
        ("ring --workers 17", "17 workers: 2 to 16 can be shown"),
        ("ring --values 1,2", "1 worker: 2 to 16 can be shown"),
        ("ring --workers 4 --values 1;2;3", "--values has 3 rows for 4 workers: each needs one"),
        ("ring --values 1,2;3,x", "--values, row 2: 'x' is not a number"),
        ("ring --values 1,2;nan,3", "--values, row 2: 'nan' is not finite"),
        ("ring --values 1,1e999;2,3", "--values, row 1: '1e999' is not finite"),
        ("ring --values 1,2;3", "--values, row 2: 1 value, but row 1 has 2"),
        ("ring --values 1,2;", "--values, row 2: no values"),
        ("ring --values 1,,2;3,4,5", "--values, row 1: nothing between two commas or beside one"),
        (&format!("ring --values {many};{many}"), "--values, row 1: 65 values: at most 64 can be shown"),
        ("ring --html no/where.html", "no/where.html: No such file or directory (os error 2)"),
    ] {
        assert_eq!(place.refused(&format!("explain {arguments}")), error);
    }
    assert!(place.refused("explain").contains("<NAME>"));
    assert!(place.refused("explain stale --staleness -1").contains("'-1' for '--staleness <STEPS>'"));
    assert!(place.refused("explain ring --workers many").contains("many"));
}
