//! `quantize`: a trained model in integers, and what it refuses. `export`: a model for other runtimes.

use std::fs;

use serde_json::Value;

use super::{Place, read};

fn fraction(value: &Value) -> f64 {
    let number = value.as_f64().unwrap();
    assert!((0.0..=1.0).contains(&number), "{number}");
    number
}

#[test]
fn without_arguments_it_does_everything_with_the_built_in_model() {
    let place = Place::new();
    let json = place.json("quantize --out out --onnx model.onnx --json");
    let (float, integers) = (fraction(&json["float_accuracy"]), fraction(&json["quantized_accuracy"]));
    assert!(float > 0.97 && (float - integers).abs() <= 0.003 + 1e-9, "{float} and {integers}");
    let steps: Vec<&str> =
        json["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["weights", "activations", "biases"]);
    assert_eq!(fraction(&json["steps"][2]["accuracy"]), integers);
    let layers = json["layers"].as_array().unwrap();
    assert_eq!(layers[0]["name"], "input");
    for layer in layers {
        assert!(layer["scale"].as_f64().unwrap() > 0.0);
        assert!((-128..=127).contains(&layer["zero_point"].as_i64().unwrap()));
        fraction(&layer["clipped"]);
        // What goes into a tangent is cut off where its value does not change any more.
        assert!(layer["sqnr_db"].as_f64().unwrap() > 5.0, "{layer}");
    }
    let [floats, integers] = ["float_bytes", "quantized_bytes"].map(|name| json[name].as_u64().unwrap());
    assert!(floats > 3 * integers && integers > 61_000);
    for name in ["float_ms", "quantized_ms"] {
        assert!(json[name].as_f64().unwrap() > 0.0);
    }

    let page = read(place.path("out/quantization.html"));
    assert!(!page.contains("{{") && page.ends_with("</html>\n"));
    let places = ["Q1 ·", "Q2 ·", "Q3 ·", "Q4 ·", "Q5 ·"].map(|question| page.find(question).expect(question));
    assert!(places.is_sorted());
    // What a tanh cuts off is explained, and how many inputs were checked is said.
    assert!(page.contains("beyond 4 the tanh that follows gives the same integer"));
    assert!(
        page.contains("Checked: the ") && page.contains(" inputs of all layers for 1,000 test images are integers")
    );
    for file in ["model.onnx", "model-float.onnx"] {
        assert!(fs::metadata(place.path(file)).unwrap().len() > 60_000, "{file}");
    }
}

#[test]
fn a_run_is_quantized_beside_its_weights_and_evaluated_alike() {
    let place = Place::new();
    place.ok("train --launch threads --workers 2 --samples 200 --epochs 10 --lr 0.05 --out run");
    let text = place.ok("quantize run --bits 6 --granularity tensor --calibration mse --images 100");
    assert!(text.contains("6 bits, a scale for each layer, calibrated by mse with 100 training images"), "{text}");
    let json = place.json("quantize run --json");
    let evaluation = place.json("eval run/quantized --json --logits logits.safetensors");
    assert_eq!(evaluation["accuracy"], json["quantized_accuracy"]);
    assert_eq!((&evaluation["precision"], &evaluation["model"]), (&"int8".into(), &"lenet5".into()));
    assert_eq!(place.json("eval run --json")["accuracy"], json["float_accuracy"]);
    // The file alone says all but the data set.
    let alone = place.json("eval run/quantized/quantized.safetensors --json");
    assert_eq!(alone["accuracy"], evaluation["accuracy"]);
    assert!(fs::metadata(place.path("logits.safetensors")).unwrap().len() > 40_000);
    place.ok("export run --onnx run.onnx");
    assert!(fs::metadata(place.path("run.onnx")).unwrap().len() > 240_000);
}

/// Wherever its folder is, that says which data a quantized model is for.
#[test]
fn a_quantized_model_is_evaluated_wherever_it_lies() {
    let place = Place::new();
    let said = place.json("quantize --json");
    let evaluation = place.json("eval runs/quantize-1 --json");
    assert_eq!((&evaluation["accuracy"], &evaluation["model"]), (&said["quantized_accuracy"], &"lenet5".into()));

    // Made images, a network of one's own and a normalisation of one's own.
    fs::write(
        place.path("net.toml"),
        "input = [12, 12, 2]\n[[layer]]\nname = \"fc\"\ntype = \"linear\"\noutputs = 10\n",
    )
    .unwrap();
    place.ok(
        "train --model net.toml --dataset synthetic:12x12x2 --normalise 0.3,0.7 --samples 200 --epochs 2 --launch threads \
         --workers 1 --sync single --out run",
    );
    let said = place.json("quantize run --out far/away --json");
    fs::remove_file(place.path("net.toml")).unwrap();
    fs::rename(place.path("far/away"), place.path("here")).unwrap();
    let evaluation = place.json("eval here --json");
    assert_eq!(evaluation["accuracy"], said["quantized_accuracy"]);
    let config = read(place.path("here/config.toml"));
    for line in ["model = \"model.toml\"", "dataset = \"synthetic:12x12x2\"", "normalise = \"0.3,0.7\""] {
        assert!(config.contains(line), "{config}");
    }

    // A run's own settings are left alone.
    let own = read(place.path("run/config.toml"));
    place.ok("quantize run --out run");
    assert_eq!(read(place.path("run/config.toml")), own);
}

#[test]
fn what_cannot_be_quantized_is_refused_in_one_line() {
    let place = Place::new();
    assert_eq!(place.refused("quantize --bits 9"), "--bits 9: from 2 to 8 are possible");
    for bits in ["1", "-1", "99999999999"] {
        assert_eq!(
            place.refused(&format!("quantize --bits {bits}")),
            format!("--bits {bits}: from 2 to 8 are possible")
        );
    }
    assert_eq!(place.refused("quantize --images 0"), "--images 0: there is nothing to calibrate with");
    assert_eq!(place.refused("quantize nothing"), "nothing: there is no such run or file");
    assert!(place.refused("quantize --calibration kl").starts_with("unknown calibration 'kl': known are minmax, "));
    fs::write(place.path("text.safetensors"), "no model").unwrap();
    let refusal = place.refused("quantize text.safetensors --model lenet5 --dataset synthetic");
    assert!(refusal.starts_with("text.safetensors: not a safetensors file"), "{refusal}");
    let refusal = place.refused("quantize text.safetensors");
    assert!(refusal.starts_with("text.safetensors: not a safetensors file"), "{refusal}");
    fs::write(place.path("lab.toml"), "model = \"lenet5\"\n").unwrap();
    assert_eq!(place.refused("quantize lab.toml"), "lab.toml: there is no table [quantize] in it");
    place.ok("train --launch threads --workers 1 --sync single --samples 50 --epochs 1 --out run");
    let refusal = place.refused("quantize .");
    assert_eq!(refusal, ". is no run, but has some in it: choose one of ./run");
    for unwritable in ["missing/model.onnx", "run"] {
        let refusal = place.refused(&format!("quantize run --onnx {unwritable}"));
        assert!(refusal.starts_with(&format!("--onnx {unwritable}: ")), "{refusal}");
    }
    // Before the study began.
    assert!(!place.path("run/quantized").exists());
    let text = place.ok("quantize run --bits 4 --onnx model.onnx");
    assert!(text.contains("ONNX: model.onnx, in floats model-float.onnx"), "{text}");
    assert!(text.contains("with 4 bits some of their answers differ"), "{text}");
    let refusal = place.refused("quantize run/quantized");
    assert!(refusal.ends_with("quantized.safetensors: it is quantized already"), "{refusal}");
    let refusal = place.refused("quantize run --dataset synthetic:32x32x3");
    assert_eq!(refusal, "lenet5 takes images of 1 channel, synthetic has 3");
    fs::write(place.path("run/model.safetensors"), "no model").unwrap();
    assert!(place.refused("quantize run").contains("run/model.safetensors: not a safetensors file"));
}

#[test]
fn an_experiment_is_trained_and_answers_with_a_bias_too() {
    let place = Place::new();
    fs::write(
        place.path("net.toml"),
        "input = [32, 32, 1]\n[[layer]]\nname = \"fc\"\ntype = \"linear\"\noutputs = 10\n",
    )
    .unwrap();
    fs::write(
        place.path("plain.toml"),
        "input = [32, 32, 1]\n[[layer]]\nname = \"fc\"\ntype = \"linear\"\noutputs = 10\nbias = false\n",
    )
    .unwrap();
    fs::write(
        place.path("lab.toml"),
        "model = \"plain.toml\"\nsamples = 300\nworkers = 1\nsync = \"single\"\nlaunch = \"threads\"\nepochs = 5\nlr = 0.01\n\
         normalise = \"0.5,0.5\"\n[quantize]\ngranularity = \"tensor\"\nimages = 50\nwith-bias = \"net.toml\"\n",
    )
    .unwrap();
    let text = place.ok("quantize lab.toml --out lab");
    assert!(text.contains("calibrated by minmax with 50 training images"), "{text}");
    assert!(text.contains("With a bias in the last layer: "), "{text}");
    assert!(read(place.path("lab/quantization.html")).contains("With a bias in the last layer: "));
    place.ok("eval lab");
    assert!(read(place.path("lab/config.toml")).contains("normalise = \"0.5,0.5\""));
    place.ok("quantize lab.toml");
    place.ok("eval runs/quantize-1");
}
