//! Getting a data set onto this machine, verified.
//!
//! What is downloaded stays in memory until it is checked, and only then is written, beside its place first: a broken connection or a
//! wrong mirror leaves nothing behind, and nothing ever leaves half a file in place.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::MultiGzDecoder;

use crate::{DataError, Dataset, file};

/// A data set that comes in files.
#[derive(Debug)]
pub struct Source {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub summary: &'static str,
    /// Who made it, and under which licence it comes.
    pub licence: &'static str,
    /// Its files.
    pub files: &'static [Piece],
    /// How mirrors have them.
    pub packing: Packing,
    /// Addresses of folders that hold them.
    pub mirrors: &'static [&'static str],
    /// Reads them from a folder.
    pub load: fn(&Path) -> Result<Dataset, DataError>,
}

/// One file of a data set.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its name, without `.gz`.
    pub name: &'static str,
    /// Of its content once unpacked, since mirrors may pack differently.
    pub sha256: &'static str,
}

/// How the files of a data set travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Each by itself, gzipped. They are kept so.
    Gzip,
    /// All in a gzipped tar archive of this name, in whatever folder within it. They are kept unpacked.
    Archive(&'static str),
}

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

/// Puts all files of a data set that are not there yet into a folder.
pub fn get(source: &Source, origin: &Origin, folder: &Path, progress: &mut Progress<'_>) -> Result<(), DataError> {
    for parcel in parcels(source, folder) {
        let files = match origin {
            Origin::Folder(from) => parcel.take_from(from)?,
            Origin::Url(url) => parcel.download(url, progress).map_err(|problem| {
                DataError::Fetch(format!("{problem}: is {url} a folder with the files of {}?", source.name))
            })?,
            Origin::Mirrors => parcel.ask_mirrors(source, progress)?,
        };
        fs::create_dir_all(folder).map_err(DataError::io(folder))?;
        files.into_iter().try_for_each(|file| file.put_into(folder))?;
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
    check_content(&content, piece)
}

fn check_content(content: &[u8], piece: &Piece) -> Result<(), String> {
    let found = file::sha256(content);
    match found == piece.sha256 {
        true => Ok(()),
        false => Err(format!("its sha256 is {found}, not {}", piece.sha256)),
    }
}

/// A file that has been checked, packed or not.
struct Checked<'a> {
    piece: &'a Piece,
    name: String,
    bytes: Vec<u8>,
}

impl Checked<'_> {
    fn put_into(self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(&self.name);
        file::write_whole(&path, &self.bytes).map_err(DataError::io(&path))?;
        // Whatever was there is damaged, packed or not; the one that is not replaced must not hide the right one.
        let other = if self.name == self.piece.name { gzipped(self.piece) } else { self.piece.name.to_owned() };
        let _ = fs::remove_file(folder.join(other));
        Ok(())
    }
}

/// What is downloaded in one go: a file, or an archive with several.
struct Parcel<'a> {
    name: String,
    archive: bool,
    /// The files that are wanted out of it.
    pieces: Vec<&'a Piece>,
}

/// Whether bytes are an archive with this file, whatever it holds; for fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn look_into(bytes: &[u8], name: &'static str) -> bool {
    let piece = Piece { name, sha256: "" };
    let parcel = Parcel { name: String::new(), archive: true, pieces: vec![&piece] };
    parcel.open(bytes.to_vec()).is_err_and(|problem| problem.contains("its sha256 is"))
}

/// What must be got so that a folder has all files.
fn parcels<'a>(source: &'a Source, folder: &Path) -> Vec<Parcel<'a>> {
    let missing: Vec<&Piece> = source.files.iter().filter(|piece| verify(folder, piece).is_err()).collect();
    match source.packing {
        _ if missing.is_empty() => Vec::new(),
        Packing::Archive(name) => vec![Parcel { name: name.to_owned(), archive: true, pieces: missing }],
        Packing::Gzip => missing
            .into_iter()
            .map(|piece| Parcel { name: gzipped(piece), archive: false, pieces: vec![piece] })
            .collect(),
    }
}

impl<'a> Parcel<'a> {
    /// The files in it, checked; the error says what is wrong, without an address.
    fn open(&self, bytes: Vec<u8>) -> Result<Vec<Checked<'a>>, String> {
        if self.archive {
            return self.unpack(&bytes);
        }
        let piece = self.pieces[0];
        check(&bytes, piece)?;
        Ok(vec![Checked { piece, name: self.name.clone(), bytes }])
    }

    fn unpack(&self, bytes: &[u8]) -> Result<Vec<Checked<'a>>, String> {
        let no_archive = |error| format!("not a whole tar.gz archive: {error}");
        let mut archive = tar::Archive::new(MultiGzDecoder::new(bytes));
        let mut files: Vec<Checked<'a>> = Vec::new();
        for entry in archive.entries().map_err(no_archive)? {
            let entry = entry.map_err(no_archive)?;
            let name = entry.path().map_err(no_archive)?.file_name().map(ToOwned::to_owned);
            let wanted = |piece: &&&Piece| name.as_deref() == Some(OsStr::new(piece.name));
            let Some(&piece) = self.pieces.iter().find(wanted) else { continue };
            let mut bytes = Vec::new();
            entry.take(file::MAX_BYTES).read_to_end(&mut bytes).map_err(no_archive)?;
            check_content(&bytes, piece).map_err(|problem| format!("{} in it: {problem}", piece.name))?;
            files.push(Checked { piece, name: piece.name.to_owned(), bytes });
        }
        match self.pieces.iter().find(|&&piece| files.iter().all(|file| file.piece != piece)) {
            Some(lacking) => Err(format!("there is no {} in it", lacking.name)),
            None => Ok(files),
        }
    }

    /// Takes the files from a folder on this machine: out of the archive, if it is there, or one by one, packed or not.
    fn take_from(&self, from: &Path) -> Result<Vec<Checked<'a>>, DataError> {
        if !from.is_dir() {
            return Err(DataError::NoFolder(from.to_owned()));
        }
        let archive = from.join(&self.name);
        if self.archive && archive.is_file() {
            let bytes = fs::read(&archive).map_err(DataError::io(&archive))?;
            return self.open(bytes).map_err(|problem| DataError::malformed(&archive, problem));
        }
        let take = |&piece: &&'a Piece| {
            let path = file::find(from, piece.name)?;
            let bytes = fs::read(&path).map_err(DataError::io(&path))?;
            check(&bytes, piece).map_err(|problem| DataError::malformed(&path, problem))?;
            let name = path.file_name().expect("found by its name").to_string_lossy().into_owned();
            Ok(Checked { piece, name, bytes })
        };
        self.pieces.iter().map(take).collect()
    }

    fn ask_mirrors(&self, source: &Source, progress: &mut Progress<'_>) -> Result<Vec<Checked<'a>>, DataError> {
        let mut problems = Vec::new();
        for mirror in source.mirrors {
            match self.download(mirror, progress) {
                Ok(files) => return Ok(files),
                Err(problem) => problems.push(problem),
            }
        }
        let what = match source.packing {
            Packing::Archive(_) => self.name.clone(),
            Packing::Gzip => format!("the {} files of {}", source.files.len(), source.name),
        };
        Err(DataError::Fetch(format!(
            "no mirror gave {} ({}): get {what} elsewhere, put {} into a folder DIR, and run \
             `ringstep data get {} --from DIR`",
            self.name,
            problems.join("; "),
            if self.archive { "it" } else { "them" },
            source.name
        )))
    }

    /// Downloads it into memory and checks what is in it; the error names the address.
    fn download(&self, folder_url: &str, progress: &mut Progress<'_>) -> Result<Vec<Checked<'a>>, String> {
        let url = format!("{}/{}", folder_url.trim_end_matches('/'), self.name);
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_secs(30)))
            .timeout_recv_body(Some(Duration::from_secs(1800)))
            .build()
            .into();
        let response = agent.get(&url).call().map_err(|error| format!("{url}: {error}"))?;
        let total = response.body().content_length();
        let mut reader = response.into_body().into_reader().take(file::MAX_BYTES);
        let mut bytes = Vec::new();
        let mut buffer = [0; 1 << 16];
        loop {
            match reader.read(&mut buffer).map_err(|error| format!("{url}: {error}"))? {
                0 => break,
                count => bytes.extend_from_slice(&buffer[..count]),
            }
            progress(&self.name, bytes.len() as u64, total);
        }
        self.open(bytes).map_err(|problem| format!("{url}: {problem}"))
    }
}
