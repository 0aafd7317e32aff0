//! The study as one page that needs nothing but itself, in the order in which a lecture would go.

use std::fmt::Write;
use std::io;

use ringstep_data::Dataset;
use ringstep_quant::grid::Bits;

use super::plot::{Distribution, accuracies, short};
use super::study::{Cut, Study, WeightFacts};
use super::subject::Subject;
use super::text;
use crate::eval::judge::Verdict;
use crate::eval::png;
use crate::html::{self, escape};
use crate::show::{bytes, percent, seconds};

const TEMPLATE: &str = include_str!("page.html");
/// More marks than this cannot be told apart.
const MARKS: u32 = 6;

/// The page.
pub fn page(subject: &Subject, study: &Study, with_bias: Option<&Study>) -> io::Result<String> {
    let cards = study.changed.iter().map(|pair| card(pair, &subject.data)).collect::<io::Result<String>>()?;
    let after = |step: usize| {
        let accuracy = study.steps[step].1;
        format!("<b>{}</b> ({})", percent(accuracy), text::points(accuracy - study.float))
    };
    let by_bits: Vec<_> = study.by_bits.iter().map(|(bits, accuracy)| (format!("{bits} bits"), *accuracy)).collect();
    let fields = [
        ("{{title}}", escape(&text::title(subject, study))),
        ("{{weights}}", escape(&subject.weights)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{facts}}", facts(study)),
        ("{{q1}}", study.weights.iter().map(|facts| weights(facts, study.model.bits)).collect()),
        ("{{float}}", percent(study.float)),
        ("{{after-weights}}", after(0)),
        ("{{scales}}", table(&scales(study))),
        ("{{images}}", study.calibrated_with.to_string()),
        ("{{q3}}", activations(study)),
        ("{{after-activations}}", after(1)),
        ("{{checked}}", escape(&text::checked(study))),
        ("{{layers}}", table(&text::layers(study))),
        ("{{after-biases}}", after(2)),
        ("{{with-bias}}", with_bias.map_or_else(String::new, |study| escape(&text::with_bias(study)))),
        ("{{biases}}", table(&biases(with_bias.unwrap_or(study)))),
        ("{{steps}}", table(&text::steps(study))),
        ("{{swept}}", study.swept.to_string()),
        ("{{sensitivity}}", accuracies(&study.sensitivity, study.swept_float)),
        ("{{bits}}", accuracies(&by_bits, study.swept_float)),
        ("{{tanh}}", escape(text::tanh(study))),
        ("{{slower}}", escape(&text::slower(study).unwrap_or_default())),
        ("{{costs}}", table(&text::costs(study))),
        ("{{changes}}", escape(&text::changes(study))),
        ("{{cards}}", cards),
        ("{{attribution}}", escape(&format!("{}: {}.", subject.data.name, subject.data.licence))),
    ];
    Ok(html::fill(TEMPLATE, &fields))
}

fn facts(study: &Study) -> String {
    let (float, integer) = (&study.float_cost, &study.integer_cost);
    let tile = |name: &str, value: String, about: String| {
        let [name, value, about] = [name, &value, &about].map(escape);
        format!("<div class=\"tile\"><dt>{name}</dt><dd>{value}<small>{about}</small></dd></div>")
    };
    [
        tile(
            "accuracy",
            format!("{} → {}", percent(study.float), percent(study.quantized())),
            text::points(study.quantized() - study.float),
        ),
        tile(
            "weights",
            format!("{} → {}", bytes(float.bytes as u64), bytes(integer.bytes as u64)),
            format!("{:.2} times smaller", float.bytes as f64 / integer.bytes as f64),
        ),
        tile(
            "one image",
            format!("{} → {}", seconds(float.latency.p50_seconds), seconds(integer.latency.p50_seconds)),
            format!("{:.2} times as fast", float.latency.p50_seconds / integer.latency.p50_seconds),
        ),
        tile(
            "images a second",
            format!("{:.0} → {:.0}", float.images_per_second, integer.images_per_second),
            format!("batch {}, {}", float.batch, study.instructions),
        ),
    ]
    .concat()
}

fn figure(title: &str, svg: &str, caption: &str) -> String {
    format!("<figure><h3>{}</h3>{svg}<figcaption>{}</figcaption></figure>", escape(title), escape(caption))
}

fn weights(facts: &WeightFacts, bits: Bits) -> String {
    let moments = facts.histogram.moments;
    let reach = bits.weights() as f32 * facts.scales.iter().copied().fold(0.0, f32::max);
    let marks: Vec<f32> = match bits.count() <= MARKS && facts.scales.windows(2).all(|pair| pair[0] == pair[1]) {
        true => (-bits.weights()..=bits.weights()).map(|integer| integer as f32 * facts.scales[0]).collect(),
        false => Vec::new(),
    };
    let band = [-3.0, 3.0].map(|times| (moments.mean() + times * moments.deviation()) as f32);
    let plot = Distribution {
        floats: facts.histogram.bins().collect(),
        integers: facts.rounded.iter().map(|&number| (number, 1)).collect(),
        range: [moments.low.min(-reach), moments.high.max(reach)],
        grid: [-reach, reach],
        marks: &marks,
        band,
    };
    let caption = format!(
        "{} weights from {} to {}, mean {}, deviation {}; {} integers are used, {:.2}% are cut off",
        moments.count,
        short(moments.low),
        short(moments.high),
        short(moments.mean() as f32),
        short(moments.deviation() as f32),
        facts.integers,
        100.0 * facts.clipped
    );
    figure(&facts.name, &plot.svg(), &caption)
}

fn activations(study: &Study) -> String {
    let mut html = String::new();
    for (layer, histogram) in study.layers.iter().zip(&study.survey.histograms) {
        let (moments, bits, grid) = (histogram.moments, study.model.bits, layer.grid);
        let rounded = |(number, count): (f32, u64)| (grid.real(grid.quantize(number, bits)), count);
        let [least, most] = bits.activations();
        let marks: Vec<f32> = match bits.count() <= MARKS {
            true => (least..=most).map(|integer| grid.real(integer as i8)).collect(),
            false => Vec::new(),
        };
        let ends = grid.range(bits);
        let plot = Distribution {
            floats: histogram.bins().collect(),
            integers: histogram.bins().map(rounded).collect(),
            range: [moments.low.min(ends[0]), moments.high.max(ends[1])],
            grid: ends,
            marks: &marks,
            band: [-3.0, 3.0].map(|times| (moments.mean() + times * moments.deviation()) as f32),
        };
        let caption = format!(
            "from {} to {}, mean {}, deviation {}; {:.3}% are cut off{}",
            short(moments.low),
            short(moments.high),
            short(moments.mean() as f32),
            short(moments.deviation() as f32),
            100.0 * layer.clipped,
            match layer.cut {
                Some(Cut::BeforeTanh) if layer.clipped > 0.0 =>
                    ": beyond 4 the tanh that follows gives the same integer",
                Some(Cut::OfTanh) if layer.clipped > 0.0 => ": the grid of a tanh ends one step before 1",
                _ => "",
            }
        );
        html += &figure(&format!("{} · {}", layer.name, layer.kind), &plot.svg(), &caption);
    }
    html
}

fn scales(study: &Study) -> Vec<Vec<String>> {
    let heading = ["layer", "scales", "smallest", "largest", "integers used", "cut off"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for facts in &study.weights {
        let [least, most] = [f32::min, f32::max].map(|which| facts.scales.iter().copied().reduce(which).unwrap_or(0.0));
        let same = facts.scales.windows(2).all(|pair| pair[0] == pair[1]);
        rows.push(vec![
            facts.name.clone(),
            if same { "1".to_owned() } else { facts.scales.len().to_string() },
            format!("{least:.3e}"),
            format!("{most:.3e}"),
            facts.integers.to_string(),
            format!("{:.2}%", 100.0 * facts.clipped),
        ]);
    }
    rows
}

/// The largest biases of each layer, as floats and as integers.
fn biases(study: &Study) -> Vec<Vec<String>> {
    let mut rows = vec![["layer", "bias", "scale", "integer", "stands for"].map(str::to_owned).to_vec()];
    for facts in &study.weights {
        for &(bias, integer, scale) in facts.biases.iter().filter(|(bias, ..)| *bias != 0.0) {
            let stands_for = integer as f32 * scale;
            rows.push(vec![
                facts.name.clone(),
                format!("{bias:.6}"),
                format!("{scale:.3e}"),
                integer.to_string(),
                format!("{stands_for:.6}"),
            ]);
        }
    }
    rows
}

fn table(rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\"><table>");
    for (index, row) in rows.iter().enumerate() {
        let cell = if index == 0 { "th" } else { "td" };
        html.push_str("<tr>");
        for text in row {
            let _ = write!(html, "<{cell}>{}</{cell}>", escape(text));
        }
        html.push_str("</tr>");
    }
    html + "</table></div>"
}

fn card((float, integer): &(Verdict, Verdict), data: &Dataset) -> io::Result<String> {
    let image = float.image;
    let uri = png::data_uri(data.test.shape, data.test.image(image))?;
    let said = |verdict: &Verdict| {
        let class = escape(&data.class_name(verdict.predicted));
        let kind = if verdict.is_right() { "right" } else { "wrong" };
        format!("<b class=\"{kind}\">{class}</b> <i>{}</i>", percent(verdict.probability))
    };
    Ok(format!(
        "<figure><img src=\"{uri}\" alt=\"test image {image}\"><figcaption>is <b>{}</b><br>floats: {}<br>integers: {}\
         <br><small>image {image}</small></figcaption></figure>",
        escape(&data.class_name(float.label)),
        said(float),
        said(integer)
    ))
}
