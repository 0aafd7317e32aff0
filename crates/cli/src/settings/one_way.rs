//! One way to stay in step, for commands that do not train.

use anyhow::{Result, bail, ensure};
use ringstep_train::SyncMethod;
use ringstep_train::compress::Compression;
use toml::Table;

use super::{CompressFlags, CompressName, SyncFlags, SyncName, compress, sync};

/// What these flags mean if they name one way, or none, which is the usual one then.
pub fn one_way(
    flags: &SyncFlags,
    compression: &CompressFlags,
    usual: SyncName,
) -> Result<(SyncMethod, Option<Compression>)> {
    let way = match flags.named()[..] {
        [] => usual,
        [way] => way,
        [..] => bail!("--sync has several ways: choose one"),
    };
    let method = match compression.named()[..] {
        [] => CompressName::None,
        [method] => method,
        [..] => bail!("--compress has several methods: choose one"),
    };
    sync::OPTIONS.refuse_foreign(&Table::try_from(flags)?, &[way])?;
    compress::OPTIONS.refuse_foreign(&Table::try_from(compression)?, &[method])?;
    ensure!(!flags.leaves_learners_open(), "--learners auto: only a training finds out how many are best");
    Ok((flags.method(way)?, compression.compression(method)?))
}
