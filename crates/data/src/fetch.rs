//! Getting a data set onto this machine, verified.
//!
//! A file is downloaded into memory, checked, and only then written, beside its place first: a broken connection or a
//! wrong mirror leaves nothing behind, and nothing ever leaves half a file in place.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{DataError, file};

/// A data set that can be downloaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// Who made it, and under which licence it comes.
    pub licence: &'static str,
    /// Its files.
    pub files: &'static [Piece],
    /// Addresses of folders that hold the files, gzipped.
    pub mirrors: &'static [&'static str],
}

/// One file of a data set.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its name, without `.gz`.
    pub name: &'static str,
    /// Of its content once unpacked, since mirrors may pack differently.
    pub sha256: &'static str,
}

/// MNIST's four files.
pub const MNIST: Source = Source {
    name: "mnist",
    summary: "handwritten digits, 28x28: 60,000 training and 10,000 test images",
    licence: "LeCun and Cortes, CC BY-SA 3.0",
    files: &[
        Piece {
            name: "train-images-idx3-ubyte",
            sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        },
        Piece {
            name: "train-labels-idx1-ubyte",
            sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        },
        Piece {
            name: "t10k-images-idx3-ubyte",
            sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        },
        Piece {
            name: "t10k-labels-idx1-ubyte",
            sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ],
    mirrors: &["https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"],
};

/// Everything that can be downloaded.
pub const SOURCES: [&Source; 1] = [&MNIST];

/// Where to take the files from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The mirrors, in their order.
    Mirrors,
    /// A folder on a web server.
    Url(String),
    /// A folder on this machine.
    Folder(PathBuf),
}

/// Told how far a file has come: its name, bytes so far, bytes in all if known.
pub type Progress<'a> = dyn FnMut(&str, u64, Option<u64>) + 'a;

/// No file of a data set comes near this; whatever does is no data set.
const MAX_BYTES: u64 = 1 << 30;

/// Puts all files of a data set that are not there yet into a folder.
pub fn get(source: &Source, origin: &Origin, folder: &Path, progress: &mut Progress<'_>) -> Result<(), DataError> {
    for piece in source.files {
        if verify(folder, piece).is_ok() {
            continue;
        }
        let (name, bytes) = match origin {
            Origin::Folder(from) => copy(from, piece)?,
            Origin::Url(url) => (
                gzipped(piece),
                download(url, piece, progress).map_err(|problem| {
                    DataError::Fetch(format!("{problem}: is {url} a folder with the files of {}?", source.name))
                })?,
            ),
            Origin::Mirrors => (gzipped(piece), from_mirrors(source, piece, progress)?),
        };
        // Whatever was there is damaged, packed or not; the one that is not replaced must not hide the right one.
        let other = if name == piece.name { gzipped(piece) } else { piece.name.to_owned() };
        let path = folder.join(&name);
        fs::create_dir_all(folder).map_err(DataError::io(folder))?;
        file::write_whole(&path, &bytes).map_err(DataError::io(&path))?;
        let _ = fs::remove_file(folder.join(other));
    }
    Ok(())
}

/// Whether all files of a data set are in a folder, right or not.
pub fn is_there(source: &Source, folder: &Path) -> bool {
    source.files.iter().all(|piece| file::find(folder, piece.name).is_ok())
}

/// Checks one file of a folder against its checksum.
pub fn verify(folder: &Path, piece: &Piece) -> Result<(), DataError> {
    let path = file::find(folder, piece.name)?;
    let bytes = fs::read(&path).map_err(DataError::io(&path))?;
    check(&bytes, piece).map_err(|problem| DataError::malformed(&path, problem))
}

fn gzipped(piece: &Piece) -> String {
    format!("{}.gz", piece.name)
}

fn check(bytes: &[u8], piece: &Piece) -> Result<(), String> {
    let content = file::gunzip(bytes.to_vec()).map_err(|error| format!("not a whole gzip file: {error}"))?;
    let found = file::sha256(&content);
    match found == piece.sha256 {
        true => Ok(()),
        false => Err(format!("its sha256 is {found}, not {}", piece.sha256)),
    }
}

/// Reads a file, packed or not, from a folder on this machine.
fn copy(from: &Path, piece: &Piece) -> Result<(String, Vec<u8>), DataError> {
    if !from.is_dir() {
        return Err(DataError::NoFolder(from.to_owned()));
    }
    let path = file::find(from, piece.name)?;
    let bytes = fs::read(&path).map_err(DataError::io(&path))?;
    check(&bytes, piece).map_err(|problem| DataError::malformed(&path, problem))?;
    let name = path.file_name().expect("found by its name").to_string_lossy().into_owned();
    Ok((name, bytes))
}

fn from_mirrors(source: &Source, piece: &Piece, progress: &mut Progress<'_>) -> Result<Vec<u8>, DataError> {
    let mut problems = Vec::new();
    for mirror in source.mirrors {
        match download(mirror, piece, progress) {
            Ok(bytes) => return Ok(bytes),
            Err(problem) => problems.push(problem),
        }
    }
    Err(DataError::Fetch(format!(
        "no mirror gave {}.gz ({}): get the {} files of {} elsewhere, put them into a folder DIR, and run \
         `ringstep data get {} --from DIR`",
        piece.name,
        problems.join("; "),
        source.files.len(),
        source.name,
        source.name
    )))
}

/// Downloads one file into memory and checks it; the error names the address.
fn download(folder_url: &str, piece: &Piece, progress: &mut Progress<'_>) -> Result<Vec<u8>, String> {
    let name = gzipped(piece);
    let url = format!("{}/{name}", folder_url.trim_end_matches('/'));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_recv_body(Some(Duration::from_secs(1800)))
        .build()
        .into();
    let response = agent.get(&url).call().map_err(|error| format!("{url}: {error}"))?;
    let total = response.body().content_length();
    let mut reader = response.into_body().into_reader().take(MAX_BYTES);
    let mut bytes = Vec::new();
    let mut buffer = [0; 1 << 16];
    loop {
        match reader.read(&mut buffer).map_err(|error| format!("{url}: {error}"))? {
            0 => break,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
        progress(&name, bytes.len() as u64, total);
    }
    check(&bytes, piece).map_err(|problem| format!("{url}: {problem}"))?;
    Ok(bytes)
}
