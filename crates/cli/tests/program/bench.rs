//! `bench collectives` and `bench kernels`: every row is there, right and complete. What the times are is nobody's
//! business here.

use super::Place;
use serde_json::Value;

const KEYS: [&str; 12] = [
    "algbw",
    "algorithm",
    "busbw",
    "bytes",
    "collective",
    "predicted_us",
    "transport",
    "us_min",
    "us_p50",
    "us_p99",
    "workers",
    "wrong",
];

#[test]
fn every_algorithm_transport_and_size_has_a_row() {
    let place = Place::new();
    let json =
        place.json("bench collectives --workers 3 --transport shm,tcp,mem --min 8 --max 8KiB --factor 32 --json");
    let rows = json["rows"].as_array().unwrap();
    // Sizes 8, 256 and 8192; six algorithms over TCP and seven elsewhere, and auto.
    assert_eq!(rows.len(), 3 * (8 + 7 + 8));
    for row in rows {
        let keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, KEYS);
        assert_eq!((&row["wrong"], &row["workers"], &row["collective"]), (&0.into(), &3.into(), &"all_reduce".into()));
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("us_min") <= number("us_p50") && number("us_p50") <= number("us_p99"));
        assert!((number("algbw") - number("bytes") / number("us_p50") / 1e3).abs() < 1e-9 * number("algbw"));
        assert!((number("busbw") - number("algbw") * 4.0 / 3.0).abs() < 1e-9 * number("busbw"));
    }
}

#[test]
fn every_operation_is_right_and_people_get_a_table() {
    let place = Place::new();
    for op in ["sum", "mean", "max", "min", "product"] {
        let text = place
            .ok(&format!("bench collectives --workers 2 --transport mem --algorithm ring,auto --max 1KiB --op {op}"));
        for part in [
            &format!("{op} of f32, 2 workers")[..],
            "#wrong",
            "busbw is algbw x 2(p-1)/p",
            "auto over mem with 2 workers: ",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    for (arguments, error) in [
        ("--workers 0", "0 workers: 1 to 1024 are possible"),
        ("--min 1XB", "'1XB' is no size: write 4096, 64KiB or 1MB"),
        ("--min 2KiB --max 1KiB", "sizes from 2048 to 1024 bytes: the smallest is 4, and not above the largest"),
        ("--transport smh", "unknown transport 'smh': known are shm, tcp, tls, mem; nearest is 'shm'"),
        ("--op summ", "unknown operation 'summ': known are sum, mean, max, min, product; nearest is 'sum'"),
        ("--transport tcp --algorithm direct", "direct needs memory that workers share, which tcp has not"),
    ] {
        assert_eq!(place.refused(&format!("bench collectives {arguments}")), error);
    }
}

/// All algorithms, over shared memory and in threads, train to the curve of the ring.
#[test]
fn training_follows_one_curve_whatever_carries_the_gradients() {
    let place = Place::new();
    let losses = |arguments: &str| -> Vec<f64> {
        let json: Value = place.json(&format!("train --json --epochs 3 --workers 3 {arguments}"));
        json["runs"][0]["epoch_losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    let ring = losses("");
    for arguments in [
        "--transport tcp",
        "--transport shm",
        "--algorithm direct",
        "--algorithm auto",
        "--algorithm halving-doubling",
        "--algorithm tree --launch threads",
        "--algorithm hierarchical",
        "--algorithm recursive-doubling --transport tcp",
    ] {
        for (ours, ring) in losses(arguments).iter().zip(&ring) {
            assert!((ours - ring).abs() < 1e-5 * ring, "{arguments}: {ours} is not {ring}");
        }
    }
    assert_eq!(
        place.refused("train --transport tcp --algorithm direct"),
        "direct needs memory that workers share: --transport auto, or --launch threads"
    );
}

#[test]
fn every_layer_of_a_model_is_timed() {
    let place = Place::new();
    let json = place.json("bench kernels --model lenet5 --batch 2 --threads 2 --json");
    let number = |json: &Value, key: &str| json[key].as_f64().unwrap_or_else(|| panic!("{key} in {json}"));
    for key in ["step_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "evaluation_seconds"] {
        assert!(number(&json, key) > 0.0, "{key}");
    }
    assert!(number(&json, "peak_flops") > 1e8);
    assert_eq!((json["model"].as_str(), number(&json, "batch"), number(&json, "threads")), (Some("lenet5"), 2.0, 2.0));
    let layers = json["layers"].as_array().unwrap();
    let named = |name: &str| layers.iter().find(|layer| layer["name"] == name).unwrap();
    assert_eq!(layers.len(), 11);
    assert_eq!(named("conv1")["algorithm"], "direct");
    assert_eq!(named("conv2")["output"], serde_json::json!([10, 10, 16]));
    assert!(number(named("fc1"), "backward_flops") > 0.0);

    let text = place.ok("bench kernels --model lenet5 --batch 2");
    assert!(text.contains("conv3") && text.contains("lenet5, batch 2, 1 thread: a step takes"), "{text}");
}
