//! `ringstep bench kernels`: where the time of a training step goes, layer by layer, and how far it is from what the
//! machine could do.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use ringstep_nn::Model;
use ringstep_nn::kernels::peak;
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::team::Team;
use ringstep_train::job::MAX_THREADS;
use ringstep_train::memory::Need;
use serde::Serialize;

use crate::args::{KernelsArgs, Passes};
use crate::memory;
use crate::peak_memory::peak_bytes;
use crate::settings::crowd;
use crate::show;

/// Steps before the clock counts: memory is touched, caches and branch predictors have learned.
const WARM_UP: usize = 2;
/// How long each kind of pass is repeated.
const PATIENCE: Duration = Duration::from_secs(3);
/// A median needs a few.
const FEWEST: usize = 5;
const MOST: usize = 500;

#[derive(Serialize)]
struct Measured {
    model: String,
    batch: usize,
    threads: usize,
    /// Forward, loss, backward, optimizer.
    step_seconds: f64,
    forward_seconds: f64,
    backward_seconds: f64,
    optimizer_seconds: f64,
    /// A pass of the frozen model.
    evaluation_seconds: f64,
    /// Multiplications and additions a second that all threads together can do.
    peak_flops: f64,
    instructions: &'static str,
    /// The most memory that the process had.
    peak_bytes: u64,
    /// Steps that the medians are of.
    steps: usize,
    layers: Vec<Layer>,
}

#[derive(Serialize)]
struct Layer {
    name: String,
    kind: &'static str,
    algorithm: &'static str,
    /// Height, width, channels.
    output: [usize; 3],
    forward_seconds: f64,
    backward_seconds: f64,
    /// By the definition of the layer, whatever the algorithm saves.
    forward_flops: f64,
    backward_flops: f64,
}

/// Measures and prints.
pub fn kernels(args: &KernelsArgs) -> Result<()> {
    for (count, name) in [(args.batch, "images a batch"), (args.threads, "threads")] {
        ensure!(count > 0, "0 {name}: at least 1 is needed");
    }
    ensure!(args.threads <= MAX_THREADS, "{} threads: at most {MAX_THREADS} are possible", args.threads);
    if let Some(crowd) = crowd(1, 0, args.threads) {
        show::warn(&crowd);
    }
    let measured = measure(args)?;
    if args.json {
        return show::print(format_args!("{}", serde_json::to_string_pretty(&measured)?));
    }
    if args.passes != Passes::Evaluation {
        show::print(format_args!("{}", table(&measured)))?;
    }
    show::print(format_args!("{}", footer(&measured)))
}

/// The median, or 0 of none.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

fn measure(args: &KernelsArgs) -> Result<Measured> {
    let design = args.model.design()?;
    let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 };
    memory::check(&design, Need::new(&design, args.batch, args.threads, rule), 1)?;
    let level = args.instructions.0.level()?;
    let mut model = design.build(args.batch, Team::new(args.threads, level));
    model.initialise(0);
    let peak_flops = peak::measure(model.for_optimizer().0);
    let mut optimizer = Optimizer::new(rule, &mut model);
    // Numbers as normalised images have them, without a pattern.
    let pixels = args.batch * model.input().len();
    let images: Vec<f32> =
        (0..pixels as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / 8e6 - 1.0).collect();
    let labels: Vec<u8> = (0..args.batch).map(|image| (image % model.classes()) as u8).collect();

    let mut passes: [Vec<f64>; 4] = Default::default();
    let mut layers: Vec<[Vec<f64>; 2]> = model.layers().map(|_| Default::default()).collect();
    let mut step = |model: &mut Model, counts: bool| {
        let started = Instant::now();
        model.forward(&images, &labels);
        let forward = started.elapsed();
        model.backward(&images, &labels, 1.0 / args.batch as f32);
        let backward = started.elapsed();
        let (team, values, gradients) = model.for_optimizer();
        optimizer.step(team, values, gradients, 1e-4);
        let whole = started.elapsed();
        if counts {
            let times = [whole, forward, backward - forward, whole - backward];
            for (pass, time) in passes.iter_mut().zip(times) {
                pass.push(time.as_secs_f64());
            }
            for (times, layer) in layers.iter_mut().zip(model.layers()) {
                times[0].push(layer.forward.as_secs_f64());
                times[1].push(layer.backward.as_secs_f64());
            }
        }
    };
    let repeat = |work: &mut dyn FnMut(bool)| {
        (0..WARM_UP).for_each(|_| work(false));
        let started = Instant::now();
        let mut count = 0;
        while count < FEWEST || (count < MOST && started.elapsed() < PATIENCE) {
            work(true);
            count += 1;
        }
        count
    };
    let steps = if args.passes == Passes::Evaluation { 0 } else { repeat(&mut |counts| step(&mut model, counts)) };
    let mut evaluations = Vec::new();
    if args.passes != Passes::Step {
        let mut frozen = model.freeze(args.batch, args.threads);
        repeat(&mut |counts| {
            let started = Instant::now();
            frozen.logits(&images);
            if counts {
                evaluations.push(started.elapsed().as_secs_f64());
            }
        });
    }

    let [step_seconds, forward_seconds, backward_seconds, optimizer_seconds] = passes.map(median);
    let layers = model
        .layers()
        .zip(layers)
        .map(|(layer, [forward, backward])| {
            let [forward_seconds, backward_seconds] = [median(forward), median(backward)];
            let rate = |operations: usize, seconds: f64| (operations * args.batch) as f64 / seconds;
            Layer {
                forward_flops: rate(layer.operations, forward_seconds),
                backward_flops: rate(layer.backward_operations, backward_seconds),
                name: layer.name,
                kind: layer.kind,
                algorithm: layer.algorithm,
                output: layer.output,
                forward_seconds,
                backward_seconds,
            }
        })
        .collect();
    Ok(Measured {
        model: args.model.to_string(),
        batch: args.batch,
        threads: args.threads,
        step_seconds,
        forward_seconds,
        backward_seconds,
        optimizer_seconds,
        evaluation_seconds: median(evaluations),
        peak_flops,
        instructions: level.name(),
        peak_bytes: peak_bytes(),
        steps,
        layers,
    })
}

fn table(measured: &Measured) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header([
        "layer",
        "",
        "algorithm",
        "output",
        "forward\nms",
        "\nGFLOP/s",
        "of\npeak",
        "backward\nms",
        "\nGFLOP/s",
        "of\npeak",
    ]);
    let rate = |flops: f64| match flops {
        0.0 => [String::new(), String::new()],
        _ => [format!("{:.0}", flops / 1e9), format!("{:.0}%", 100.0 * flops / measured.peak_flops)],
    };
    for layer in &measured.layers {
        let [height, width, channels] = layer.output;
        let ([forward, of_peak], [backward, backward_of_peak]) =
            (rate(layer.forward_flops), rate(layer.backward_flops));
        table.add_row([
            layer.name.clone(),
            layer.kind.to_owned(),
            layer.algorithm.to_owned(),
            format!("{height}x{width}x{channels}"),
            format!("{:.3}", layer.forward_seconds * 1e3),
            forward,
            of_peak,
            format!("{:.3}", layer.backward_seconds * 1e3),
            backward,
            backward_of_peak,
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        column.set_cell_alignment(if index < 3 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

fn footer(measured: &Measured) -> String {
    let Measured { model, batch, threads, .. } = measured;
    let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let step = (measured.steps > 0).then(|| {
        format!(
            "a step takes {} (forward {}, backward {}, optimizer {})",
            ms(measured.step_seconds),
            ms(measured.forward_seconds),
            ms(measured.backward_seconds),
            ms(measured.optimizer_seconds)
        )
    });
    let evaluation = (measured.evaluation_seconds > 0.0)
        .then(|| format!("the frozen model takes {}", ms(measured.evaluation_seconds)));
    let passes: Vec<String> = step.into_iter().chain(evaluation).collect();
    format!(
        "{model}, batch {batch}, {threads} thread{}: {}; medians.\nPeak memory {:.0} MB. {} instructions, {:.0} GFLOP/s at \
         best. GFLOP/s count the multiplications and additions of a layer's definition: an algorithm that saves some can be \
         above the peak.",
        if *threads == 1 { "" } else { "s" },
        passes.join(", "),
        measured.peak_bytes as f64 / 1e6,
        measured.instructions,
        measured.peak_flops / 1e9,
    )
}
