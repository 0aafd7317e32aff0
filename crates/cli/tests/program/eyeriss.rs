//! `eyeriss`: the accelerator.

use std::fs;

use serde_json::Value;

use super::{Place, read};

const EXAMPLE: &str = "eyeriss explain --filter -1,2;1,0 --input 1,3,9;2,4,1;0,5,2";

#[test]
fn a_convolution_cycle_by_cycle() {
    let place = Place::new();
    let text = place.ok(EXAMPLE);
    for line in [
        "filter row 1 (-1 2) stays in PE1, PE3",
        "input row 2 (2 4 1) goes to PE2, PE3",
        "Cycle 1 of 2, output column 1",
        "PE1: 1x(-1) + 3x2 = 5",
        "up column 1: 2 + 5 = 7 is output row 1, column 1",
        "16 MACs for 4 outputs in 2 cycles",
    ] {
        assert!(text.lines().any(|found| found.trim() == line), "{line}: {text}");
    }
    let slow = place.ok(&format!("{EXAMPLE} --macs-per-cycle 1"));
    assert!(slow.contains("Cycle 4 of 4") && slow.contains("PE1: -1 + 3x2 = 5"), "{slow}");
}

#[test]
fn the_film_needs_nothing_but_itself() {
    let place = Place::new();
    assert_eq!(place.ok(&format!("{EXAMPLE} --html film.html")), "Page: film.html\n");
    let page = read(place.path("film.html"));
    alone(&page);
    let (_, rest) = page.split_once(r#"<script type="application/json" id="film">"#).unwrap();
    let film: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let frames = film["frames"].as_array().unwrap();
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[1]["work"][0], serde_json::json!(["1x(-1) + 3x2 = 5", "5"]));
    assert_eq!(frames[1]["output"], serde_json::json!([["7", ""], ["6", ""]]));
    assert_eq!(frames[2]["output"], serde_json::json!([["7", "19"], ["6", "3"]]));
}

/// The page has no addresses and loads nothing.
fn alone(page: &str) {
    assert!(!page.contains("{{") && page.ends_with("</html>\n"));
    for word in ["://", "<link", "src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
}

fn near(value: &Value, published: f64, share: f64) -> bool {
    (value.as_f64().unwrap() - published).abs() <= share * published
}

/// What must hold against the chip (Chen et al., JSSC 2017), with the best mapping and with the chip's own.
#[test]
fn alexnet_stands_up_to_the_chip() {
    let place = Place::new();
    for mapping in ["", "--mapping published"] {
        let json = place.json(&format!("eyeriss run --network alexnet --json {mapping}"));
        let layers = json["layers"].as_array().unwrap();
        let names: Vec<_> = layers.iter().map(|layer| layer["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["CONV1", "CONV2", "CONV3", "CONV4", "CONV5"]);
        let active: Vec<_> = layers.iter().map(|layer| layer["active_pes"].as_u64().unwrap()).collect();
        assert_eq!(active, [154, 135, 156, 156, 156]);
        assert!(near(&layers[0]["latency_ms"], 16.5, 0.2) && near(&layers[1]["latency_ms"], 39.2, 0.2), "{json}");
        let total = &json["total"];
        assert!(near(&total["macs"], 2663e6, 0.01) && near(&total["latency_ms"], 103.5, 0.15), "{total}");
        assert!(near(&total["latency_with_dram_ms"], 115.3, 0.15), "{total}");
        // The parts of the energy add up, by level and by kind.
        let energy = |part: &str| total["energy"][part].as_f64().unwrap();
        let levels = ["mac", "dram", "buffer", "array", "scratchpad"].map(energy).iter().sum::<f64>();
        let kinds = ["mac", "input", "filter", "partial_sum"].map(energy).iter().sum::<f64>();
        assert!((levels / energy("total") - 1.0).abs() < 1e-9 && (kinds / energy("total") - 1.0).abs() < 1e-9);
        assert_eq!(layers[1]["mapping"]["e"], 27);
    }
    let text = place.ok("eyeriss run --network alexnet");
    assert!(text.contains("Beside the chip") && text.contains("AAAAAAABBBBBBB"), "{text}");
}

/// What must hold against the ISCA 2016 study, in its set-up.
#[test]
fn row_stationary_needs_the_least_energy() {
    let place = Place::new();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../../architectures/eyeriss-isca.toml"), place.path("isca.toml"))
        .unwrap();
    let json =
        place.json("eyeriss run --network alexnet --batch 16 --arch isca.toml --dataflow all --json --html page.html");
    let energies: Vec<(&str, f64)> = json["dataflows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|each| (each["dataflow"].as_str().unwrap(), each["total"]["energy"]["total"].as_f64().unwrap()))
        .collect();
    assert_eq!(energies.len(), 4);
    for (name, energy) in &energies[1..] {
        let ratio = energy / energies[0].1;
        assert!((1.4..=2.5).contains(&ratio), "{name}: {ratio}");
    }
    let page = read(place.path("page.html"));
    alone(&page);
    assert!(page.contains("Dataflows side by side") && page.contains("CONV5"));
}

#[test]
fn every_network_and_kind_of_layer_works() {
    let place = Place::new();
    for network in ["alexnet", "vgg16", "vgg11", "lenet5", "resnet18"] {
        for objective in ["energy", "latency"] {
            let command =
                format!("eyeriss run --network {network} --layers all --batch 2 --objective {objective} --json");
            let json = place.json(&command);
            assert!(json["layers"].as_array().unwrap().iter().all(|layer| layer["cycles"].as_u64() > Some(0)));
        }
    }
    let fastest = |objective: &str| {
        place.json(&format!("eyeriss run --network alexnet --objective {objective} --json"))["total"]["cycles"].as_u64()
    };
    assert!(fastest("latency") <= fastest("energy"));
}

#[test]
fn a_trained_run_says_where_its_zeros_are() {
    let place = Place::new();
    place.ok("train --launch threads --workers 1 --samples 20 --epochs 1 --out run");
    let json = place.json("eyeriss run --model run --layers all --json");
    assert_eq!(json["layers"].as_array().unwrap().len(), 5);
    for layer in json["layers"].as_array().unwrap() {
        let zeros = &layer["zeros"];
        let gated = zeros["gated_macs"].as_f64().unwrap();
        assert!((0.0..1.0).contains(&gated), "{layer}");
        // Without padding, a MAC is gated if and only if its pixel is zero; tanh and black pixels are seldom zero.
        assert!(gated < 0.05 && zeros["input"].as_f64().unwrap() < 0.05, "{layer}");
        // Three values in 64 bits instead of four: without zeros, coding costs a third.
        let (coded, plain) = (zeros["dram_bytes_coded"].as_f64().unwrap(), layer["dram_bytes"].as_f64().unwrap());
        assert!((1.0..1.34).contains(&(coded / plain)), "{layer}");
    }
    assert!(place.ok("eyeriss run --model run").contains("Zeros in the run's own weights and activations"));
}

/// The network that the name stands for is the one that was trained.
#[test]
fn a_trained_lenet5_has_the_layers_of_the_network_of_that_name() {
    let place = Place::new();
    place.ok("train --launch threads --workers 1 --samples 20 --epochs 1 --out run");
    for layers in ["", "--layers all"] {
        let run = |what: &str| {
            let json = place.json(&format!("eyeriss run {what} {layers} --json"));
            let of_layer = |layer: &Value| ["name", "macs", "cycles"].map(|key| layer[key].clone());
            (
                json["layers"].as_array().unwrap().iter().map(of_layer).collect::<Vec<_>>(),
                json["total"]["energy"]["total"].clone(),
            )
        };
        assert_eq!(run("--model run"), run("--network lenet5"));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new();
    fs::write(place.path("zero.toml"), "rows = 0\n").unwrap();
    fs::write(place.path("broken.toml"), "name = \"x\"\nrows = \n").unwrap();
    fs::write(place.path("unknown.toml"), "rows = 3\ncolums = 4\n").unwrap();
    fs::write(place.path("low.toml"), "rows = 4\n").unwrap();
    fs::write(place.path("pads.toml"), "[scratchpad]\ninput = 8\n").unwrap();
    fs::write(place.path("buffer.toml"), "[buffer]\nbytes = 9000\n").unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    let alexnet = "eyeriss run --network alexnet";
    for (command, error) in [
        (
            "eyeriss run --network alexnot".to_owned(),
            "unknown network 'alexnot': known are alexnet, vgg16, vgg11, lenet5, resnet18; nearest is 'alexnet'",
        ),
        (
            format!("{alexnet} --dataflow row"),
            "unknown dataflow 'row': known are row-stationary, weight-stationary, output-stationary, no-local-reuse, all; \
             nearest is 'row-stationary'",
        ),
        (
            format!("{alexnet} --objective speed"),
            "unknown objective 'speed': known are energy, latency; nearest is 'energy'",
        ),
        (format!("{alexnet} --batch 0"), "--batch 0: it must be between 1 and 256"),
        (
            format!("{alexnet} --layers CONV9"),
            "no layer 'CONV9': there are CONV1, CONV2, CONV3, CONV4, CONV5, FC1, FC2, FC3",
        ),
        (format!("{alexnet} --arch zero.toml"), "zero.toml: rows is 0: it must be between 1 and 256"),
        (format!("{alexnet} --arch low.toml"), "layer CONV1: array rows too small: R needs 11, there are 4"),
        (
            format!("{alexnet} --arch pads.toml"),
            "layer CONV1: input scratchpad too small: q S = 1 x 11 needs 11 words, there are 8",
        ),
        (
            format!("{alexnet} --arch buffer.toml"),
            "layer CONV1: global buffer too small: inputs 2497 + partial sums 55 needs 2552 words, there are 404",
        ),
        (format!("{alexnet} --mapping m=1,n=1"), "--mapping: e is missing"),
        (format!("{alexnet} --mapping m=1,x=1"), "--mapping: unknown letter 'x': known are m, n, e, p, q, r, t"),
        (
            format!("{alexnet} --mapping m=96,n=1,e=7,p=16,q=2,r=1,t=2"),
            "layer CONV1: input scratchpad too small: q S = 2 x 11 needs 22 words, there are 12",
        ),
        (
            "eyeriss run --network vgg16 --mapping published".to_owned(),
            "--mapping published: there is none for layer CONV1-1, only for alexnet's CONV1 to CONV5",
        ),
        ("eyeriss run --model nowhere".to_owned(), "--model nowhere: there is no such folder"),
        (
            "eyeriss run --model empty".to_owned(),
            "--model empty: no model.safetensors in it; a comparison has one in the folder of each way",
        ),
        (format!("{alexnet} --html no/where.html"), "no/where.html: No such file or directory (os error 2)"),
        (
            "eyeriss explain --filter 1,2,3 --input 1,2;3,4".to_owned(),
            "a filter of 1x3 is larger than its input of 2x2",
        ),
        ("eyeriss explain --filter 1,x --input 1,2".to_owned(), "--filter: row 1: 'x' is not a number"),
        ("eyeriss explain --filter 1; --input 1,2".to_owned(), "--filter: row 2 has no numbers"),
        ("eyeriss explain --filter 1 --input 1,2;3".to_owned(), "the input's row 2 has 1 numbers, its first row has 2"),
        ("eyeriss explain --filter 1 --input 1 --stride 0".to_owned(), "the stride is 0: it must be between 1 and 1"),
        (
            "eyeriss explain --filter 1,1 --input 1,1 --macs-per-cycle 3".to_owned(),
            "MACs a cycle is 3: it must be between 1 and 2",
        ),
    ] {
        assert_eq!(place.refused(&command), error);
    }
    assert!(place.refused(&format!("{alexnet} --arch broken.toml")).starts_with("broken.toml, line 2: "));
    assert!(
        place.refused(&format!("{alexnet} --arch unknown.toml")).starts_with("unknown.toml, line 2: unknown field")
    );
    assert!(place.refused("eyeriss run").contains("--network"));
}
