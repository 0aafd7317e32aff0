//! What the flags of `run` name: architectures, layers, mappings.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ringstep_data::file::read_text;
use ringstep_eyeriss::arch::Architecture;
use ringstep_eyeriss::dataflows::Dataflow;
use ringstep_eyeriss::layer::Layer;
use ringstep_eyeriss::mapping::Mapping;
use ringstep_eyeriss::published;

use crate::names::lookup;

/// The architecture of a file, or the chip.
pub fn architecture(path: Option<&Path>) -> Result<Architecture> {
    let Some(path) = path else { return Ok(Architecture::default()) };
    let text = read_text(path).with_context(|| path.display().to_string())?;
    // A line of the file is part of the place: `x.toml, line 2: ...`.
    Architecture::from_toml(&text).map_err(|error| {
        let error = error.to_string();
        let separator = if error.starts_with("line ") { "," } else { ":" };
        anyhow!("{}{separator} {error}", path.display())
    })
}

/// The dataflows of a name.
pub fn dataflows(name: &str) -> Result<Vec<Dataflow>> {
    let known: Vec<Option<Dataflow>> = Dataflow::ALL.map(Some).into_iter().chain([None]).collect();
    let chosen = lookup("dataflow", name, &known, |dataflow| dataflow.map_or("all", Dataflow::name))?;
    Ok(chosen.map_or_else(|| Dataflow::ALL.to_vec(), |dataflow| vec![dataflow]))
}

/// The layers that were asked for.
pub fn layers(all: Vec<Layer>, names: &[String]) -> Result<Vec<Layer>> {
    let keep: Vec<Layer> = match names {
        [one] if one == "all" => all,
        [one] if one == "conv" => all.into_iter().filter(|layer| !layer.fully_connected).collect(),
        names => {
            for name in names {
                let known: Vec<&str> = all.iter().map(|layer| layer.name.as_str()).collect();
                ensure!(known.contains(&name.as_str()), "no layer '{name}': there are {}", known.join(", "));
            }
            all.into_iter().filter(|layer| names.contains(&layer.name)).collect()
        }
    };
    ensure!(!keep.is_empty(), "no layers are left");
    keep.iter().try_for_each(Layer::validate)?;
    Ok(keep)
}

/// The mapping that is given for each layer, if any.
pub fn mappings(text: Option<&str>, layers: &[Layer]) -> Result<Vec<Option<Mapping>>> {
    let Some(text) = text else { return Ok(vec![None; layers.len()]) };
    if text == "published" {
        let of = |layer: &Layer| {
            let chip = published::ALEXNET.iter().find(|chip| chip.name == layer.name);
            chip.map(|chip| Some(chip.mapping)).with_context(|| {
                format!(
                    "--mapping published: there is none for layer {}, only for alexnet's CONV1 to CONV5",
                    layer.name
                )
            })
        };
        return layers.iter().map(of).collect();
    }
    let mut mappings = vec![None; layers.len()];
    for part in text.split(';').filter(|part| !part.trim().is_empty()) {
        match part.split_once(':') {
            Some((name, mapping)) => {
                let at = layers.iter().position(|layer| layer.name == name.trim());
                let at = at.with_context(|| {
                    let known: Vec<&str> = layers.iter().map(|layer| layer.name.as_str()).collect();
                    format!("--mapping: no layer '{}': there are {}", name.trim(), known.join(", "))
                })?;
                mappings[at] = Some(mapping_of(mapping)?);
            }
            None => mappings.fill(Some(mapping_of(part)?)),
        }
    }
    Ok(mappings)
}

/// `m=64,n=1,e=27,p=16,q=2,r=1,t=1`, in any order.
fn mapping_of(text: &str) -> Result<Mapping> {
    const LETTERS: [&str; 7] = ["m", "n", "e", "p", "q", "r", "t"];
    let mut values = [None; LETTERS.len()];
    for part in text.split(',') {
        let (letter, value) =
            part.split_once('=').with_context(|| format!("--mapping: '{}' is no x=N", part.trim()))?;
        let Some(at) = LETTERS.iter().position(|known| *known == letter.trim()) else {
            bail!("--mapping: unknown letter '{}': known are {}", letter.trim(), LETTERS.join(", "));
        };
        let value: usize =
            value.trim().parse().ok().with_context(|| format!("--mapping: '{}' is no size", part.trim()))?;
        // Products of larger ones could not be counted.
        ensure!(value <= 1 << 16, "--mapping: {}={value} is more than any layer has", letter.trim());
        ensure!(values[at].replace(value).is_none(), "--mapping: {} is given twice", letter.trim());
    }
    let value = |at: usize| values[at].with_context(|| format!("--mapping: {} is missing", LETTERS[at]));
    let (m, n, e, p) = (value(0)?, value(1)?, value(2)?, value(3)?);
    Ok(Mapping { m, n, e, p, q: value(4)?, r: value(5)?, t: value(6)? })
}

#[cfg(test)]
mod tests {
    use ringstep_eyeriss::networks::Network;

    use super::*;

    #[test]
    fn a_mapping_is_for_all_layers_or_for_those_it_names() {
        let layers = &Network::AlexNet.layers()[..2];
        let of = |text| mappings(Some(text), layers).unwrap();
        let mapping = Mapping { m: 7, n: 6, e: 5, p: 4, q: 3, r: 2, t: 1 };
        assert_eq!(of("t=1,r=2, q=3,p=4,e=5,n=6,m=7"), [Some(mapping); 2]);
        assert_eq!(of("CONV2: m=7,n=6,e=5,p=4,q=3,r=2,t=1"), [None, Some(mapping)]);
        assert_eq!(of("published")[1].unwrap().e, 27);
        assert_eq!(mappings(None, layers).unwrap(), [None; 2]);
    }
}
