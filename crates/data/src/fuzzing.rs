//! The files of data sets, for fuzzers.

use std::path::Path;

use crate::{Images, cifar10, fetch, file, mnist};

/// The length of an images file, then that file and the one of its labels.
pub fn idx(input: &[u8]) -> bool {
    let Some((length, files)) = input.split_first_chunk() else { return false };
    let length = u32::from_le_bytes(*length) as usize;
    let Some((images, labels)) = files.split_at_checked(length) else { return false };
    let path = Path::new("file");
    mnist::pair(path, images, path, labels).is_ok_and(|images| {
        assert_eq!(images.pixels.len(), images.shape.len() * images.labels.len());
        true
    })
}

/// CIFAR-10's records.
pub fn cifar10(input: &[u8]) -> bool {
    let mut images = Images { shape: cifar10::SHAPE, pixels: Vec::new(), labels: Vec::new() };
    let taken = cifar10::parse(input, &mut images).is_ok();
    assert_eq!(images.pixels.len(), images.shape.len() * images.labels.len());
    taken
}

/// What may be gzipped, and what is a gzipped archive.
pub fn gzip(input: &[u8]) -> bool {
    let archive = fetch::look_into(input, "data_batch_1.bin");
    let unpacked = file::gunzip(input.to_vec());
    archive || unpacked.is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::replay::replay;

    fn idx_file(sizes: &[u32], elements: &[u8]) -> Vec<u8> {
        let sizes_of = sizes.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, sizes.len() as u8].into_iter().chain(sizes_of).chain(elements.iter().copied()).collect()
    }

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn files_of_data_sets() {
        let images = idx_file(&[2, 28, 28], &[7; 2 * 28 * 28]);
        let pair = [&(images.len() as u32).to_le_bytes()[..], &images, &idx_file(&[2], &[3, 9])].concat();
        replay("idx", idx, &[pair]);
        replay("cifar10", super::cifar10, &[[&[9][..], &[1; 3072]].concat()]);

        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_mode(0o644);
        archive.append_data(&mut header, "cifar/data_batch_1.bin", &b"12345"[..]).unwrap();
        let archive = archive.into_inner().unwrap();
        replay("gzip", gzip, &[gzipped(b"some text"), gzipped(&archive), b"plain".to_vec()]);
    }
}
