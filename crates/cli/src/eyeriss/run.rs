//! Validates what was asked for, does it, and shows it.

use anyhow::{Context, Result, ensure};
use ringstep_eyeriss::networks::Network;
use ringstep_eyeriss::search::Objective;

use super::study::{Study, Subject, outcome};
use super::{RunArgs, choose, json, report, text, trained};
use crate::names::lookup;
use crate::show;

/// More images at once than this are no batch of an accelerator with 108 kB.
const MOST_IMAGES: usize = 256;

/// `ringstep eyeriss run`.
pub fn run(args: &RunArgs) -> Result<()> {
    ensure!((1..=MOST_IMAGES).contains(&args.batch), "--batch {}: it must be between 1 and {MOST_IMAGES}", args.batch);
    let arch = choose::architecture(args.arch.as_deref())?;
    let dataflows = choose::dataflows(&args.dataflow)?;
    let objective = lookup("objective", &args.objective, &Objective::ALL, Objective::name)?;
    let trained = args.model.as_deref().map(|folder| trained::load(folder, args.batch)).transpose()?;
    let (name, layers) = match (&args.network, &trained) {
        (Some(name), _) => {
            let network = lookup("network", name, &Network::ALL, Network::name)?;
            (network.name().to_owned(), network.layers())
        }
        (None, Some(trained)) => (trained.title.clone(), trained.layers()),
        (None, None) => unreachable!("one of the two is required"),
    };
    let layers = choose::layers(layers, &args.layers)?;
    let mappings = choose::mappings(args.mapping.as_deref(), &layers)?;
    let subjects: Vec<Subject> = layers
        .into_iter()
        .zip(mappings)
        .map(|(layer, mapping)| {
            let zeros = trained.as_ref().and_then(|trained| trained.zeros(&layer.name));
            Subject { layer, mapping, zeros }
        })
        .collect();
    let outcomes = dataflows
        .into_iter()
        .map(|dataflow| outcome(dataflow, &subjects, args.batch, &arch, objective))
        .collect::<Result<_>>()?;
    let study = Study { network: name, arch, batch: args.batch, objective, outcomes };

    if let Some(path) = &args.html {
        let page = report::page(&study);
        ringstep_data::file::write_whole(path, page.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if args.json {
        return show::print(format_args!("{}", serde_json::to_string(&json::json(&study))?));
    }
    let mut text = text::text(&study, args.brief);
    if let Some(path) = &args.html {
        text += &format!("Page: {}\n", path.display());
    }
    show::print(format_args!("{}", text.trim_end()))
}
