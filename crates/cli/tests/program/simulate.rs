//! `ringstep simulate`: rows, page and trace; what it refuses.

use serde_json::Value;

use crate::{Place, read};

/// A row for each scale, in ascending order, whose parts are no more than the whole.
#[test]
fn a_row_for_each_scale() {
    let place = Place::new();
    let json = place.json("simulate --model lenet5 --batch 8 --workers 1..16 --compute 20 --json");
    let rows = json["rows"].as_array().unwrap();
    let workers: Vec<u64> = rows.iter().map(|row| row["workers"].as_u64().unwrap()).collect();
    assert_eq!(workers, [1, 2, 4, 8, 16]);
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    for row in rows {
        let parts = number(row, "compute_seconds") + number(row, "exposed_comm_seconds");
        assert!(parts <= number(row, "step_seconds") * (1.0 + 1e-9), "{row}");
        assert!((0.0..=1.0 + 1e-9).contains(&number(row, "efficiency")), "{row}");
    }
    assert_eq!(number(&rows[0], "efficiency"), 1.0);
    assert!(rows[1]["algorithm"].is_string() && rows[1]["bucket"].is_u64());
    // The same again is the same.
    assert_eq!(json, place.json("simulate --model lenet5 --batch 8 --workers 1..16 --compute 20 --json"));
}

/// Every way that can be, compressed or not, slow or failing; and a step of servers is no shorter than one of nobody.
#[test]
fn every_way_has_a_step() {
    let place = Place::new();
    let step = |flags: &str| {
        let json = place.json(&format!(
            "simulate --model lenet5 --batch 8 --workers 4 --network 1gbit,50us --compute 20 --json {flags}"
        ));
        json["rows"][0]["step_seconds"].as_f64().unwrap()
    };
    let alone = step("--sync none");
    for way in [
        "gather-scatter",
        "all-reduce",
        "ddp",
        "local-sgd --every 4",
        "diloco",
        "sma",
        "parameter-server --servers 2",
        "stale",
        "async",
        "parameter-server --servers colocated",
    ] {
        assert!(step(&format!("--sync {way}")) > alone, "{way}");
    }
    assert!(step("--compress int8") < step("--compress fp16"));
    assert!(step("--slow 1:3") > 2.9 * alone);
    assert!(step("--failures between=1h,restart=10s") > step(""));
    assert!(step("--hosts 4 --cores 2 --sync none") > 1.9 * alone);
}

#[test]
fn it_leaves_a_page_and_a_trace() {
    let place = Place::new();
    let said = place.ok("simulate --model lenet5 --workers 2,8 --compute 20 --out page --trace trace.json");
    for word in ["efficiency", "exposed comm", "Page: page/simulation.html", "Trace: trace.json"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let page = read(place.path("page/simulation.html"));
    assert!(page.contains("8 workers") && page.contains("<polyline") && !page.contains("{{"));
    let trace: Value = serde_json::from_str(&read(place.path("trace.json"))).unwrap();
    let names: Vec<&str> =
        trace["traceEvents"].as_array().unwrap().iter().filter_map(|event| event["name"].as_str()).collect();
    assert!(["forward", "backward", "optimizer", "exchange 0"].iter().all(|name| names.contains(name)), "{names:?}");
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    let place = Place::new();
    for (flags, told) in [
        ("--workers 0", "0 workers: at least 1 is needed"),
        ("--workers 4,2", "2 comes after 4"),
        ("--workers 2..1000000", "at most 16384 can be simulated"),
        ("--network fast", "'fast' is no link"),
        ("--algorithm rign", "unknown algorithm 'rign'"),
        ("--sync dpd", "unknown way to synchronise 'dpd'"),
        ("--sync ddp,stale", "--sync has several ways"),
        ("--sync stale --bucket 1MiB", "--bucket belongs to ddp"),
        ("--sync post-local-sgd", "post-local-sgd cannot be simulated"),
        ("--compress threshold", "threshold cannot be simulated"),
        ("--batch 0", "0 images a step"),
        ("--hosts 0", "0 workers a host"),
        ("--compute fast", "write measured, or GFLOP/s"),
        ("--slow 4:2 --workers 2", "worker 4 cannot be slow"),
        ("--failures soon", "--failures soon"),
        ("--algorithm direct", "direct needs memory that all workers share"),
    ] {
        let refusal = place.refused(&format!("simulate {flags}"));
        assert!(refusal.contains(told), "{flags}: {refusal}");
    }
}
