//! Files that are there whole or not at all.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::DataError;

/// No file of a data set comes near this; whatever does is no data set.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// Writes beside the target and renames, so that nobody ever sees half a file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_by(path, |file| file.write_all(bytes))
}

/// The same with these parts one after the other, and their sha256, piece by piece while they are in a near cache.
pub fn write_summed<'a>(path: &Path, parts: impl IntoIterator<Item = &'a [u8]>) -> io::Result<String> {
    const PIECE: usize = 256 << 10;
    let mut sum = Sha256::new();
    write_by(path, |file| {
        for piece in parts.into_iter().flat_map(|part| part.chunks(PIECE)) {
            sum.update(piece);
            file.write_all(piece)?;
        }
        Ok(())
    })?;
    Ok(hexadecimal(&sum.finalize()))
}

fn write_by(path: &Path, write: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let written = fs::File::create(&partial)
        .and_then(|mut file| write(&mut file).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// The content of a file: not of a device, of which there is no end.
pub fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let kind = fs::metadata(path)?.file_type();
    match kind.is_char_device() || kind.is_block_device() {
        true => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device, not a file")),
        false => fs::read(path),
    }
}

/// The same for text that somebody has written, which is not long.
pub fn read_text(path: &Path) -> io::Result<String> {
    const MOST: u64 = 16 << 20;
    let mut text = String::new();
    let length = fs::File::open(path)?.take(MOST).read_to_string(&mut text)?;
    match length as u64 == MOST {
        true => Err(io::Error::new(io::ErrorKind::InvalidInput, "no text of this kind is that long")),
        false => Ok(text),
    }
}

/// The path of a file that may be there as `name.gz` or as `name`.
pub(crate) fn find(folder: &Path, name: &'static str) -> Result<PathBuf, DataError> {
    [format!("{name}.gz"), name.to_owned()]
        .into_iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| DataError::NoFile { folder: folder.to_owned(), file: name })
}

/// The content of a file, which may be gzipped.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let bytes = fs::read(path).map_err(DataError::io(path))?;
    gunzip(bytes).map_err(|error| DataError::malformed(path, format!("not a whole gzip file: {error}")))
}

/// Unpacks what is gzipped and leaves alone what is not.
pub fn gunzip(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    let length = MultiGzDecoder::new(&bytes[..]).take(MAX_BYTES).read_to_end(&mut unpacked)?;
    match length as u64 == MAX_BYTES {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "unpacked it is larger than any data set")),
        false => Ok(unpacked),
    }
}

/// The sha256 of some bytes, as `sha256sum` prints it.
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn hexadecimal(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}
