//! The IDX format of the MNIST files: two zero bytes, the element type (8: unsigned byte), the number of dimensions,
//! the dimensions as big-endian 32-bit integers, then the elements.

/// Which of the two kinds of file is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Three dimensions: images, rows, columns.
    Images,
    /// One dimension.
    Labels,
}

impl Kind {
    const UNSIGNED_BYTE: u8 = 8;

    fn dimensions(self) -> usize {
        match self {
            Self::Images => 3,
            Self::Labels => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Labels => "labels",
        }
    }

    fn of_magic(magic: [u8; 4]) -> Option<Self> {
        [Self::Images, Self::Labels]
            .into_iter()
            .find(|kind| magic == [0, 0, Self::UNSIGNED_BYTE, kind.dimensions() as u8])
    }
}

/// Reads the dimensions and the elements behind them; the error says what is wrong, without the file's name.
pub fn parse(bytes: &[u8], wanted: Kind) -> Result<(Vec<usize>, &[u8]), String> {
    let magic: [u8; 4] = bytes.get(..4).and_then(|magic| magic.try_into().ok()).ok_or("truncated: no IDX header")?;
    match Kind::of_magic(magic) {
        Some(kind) if kind == wanted => {}
        Some(kind) => return Err(format!("mislabelled: holds {}, not {}", kind.name(), wanted.name())),
        None => return Err(format!("not an IDX file of {}: begins with bytes {magic:02x?}", wanted.name())),
    }
    let header = 4 + 4 * wanted.dimensions();
    let dimensions: Vec<usize> = bytes
        .get(4..header)
        .ok_or("truncated: its IDX header is not complete")?
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes(word.try_into().expect("four bytes")) as usize)
        .collect();
    let elements = &bytes[header..];
    let promised = dimensions.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    if promised != Some(elements.len()) {
        let sizes: Vec<String> = dimensions.iter().map(usize::to_string).collect();
        let relation = if promised.is_none_or(|promised| elements.len() < promised) { "truncated" } else { "too long" };
        return Err(format!("{relation}: its header says {} bytes, {} follow", sizes.join(" x "), elements.len()));
    }
    Ok((dimensions, elements))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dimensions: &[u32], elements: usize) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
        bytes.extend(dimensions.iter().flat_map(|size| size.to_be_bytes()));
        bytes.extend((0..elements).map(|i| i as u8));
        bytes
    }

    #[test]
    fn dimensions_and_elements_come_back() {
        let bytes = file(&[2, 3, 4], 24);
        let (dimensions, elements) = parse(&bytes, Kind::Images).unwrap();
        assert_eq!(dimensions, [2, 3, 4]);
        assert_eq!(elements, (0..24).collect::<Vec<u8>>());
    }

    #[test]
    fn whatever_is_cut_off_is_noticed() {
        let bytes = file(&[2, 3, 4], 24);
        for length in 0..bytes.len() {
            let problem = parse(&bytes[..length], Kind::Images).unwrap_err();
            assert!(problem.starts_with("truncated"), "{length}: {problem}");
        }
    }

    #[test]
    fn other_files_are_told_apart() {
        let problem = |bytes: &[u8]| parse(bytes, Kind::Images).unwrap_err();
        assert_eq!(problem(&file(&[5], 5)), "mislabelled: holds labels, not images");
        assert_eq!(problem(b"<html>"), "not an IDX file of images: begins with bytes [3c, 68, 74, 6d]");
        assert_eq!(problem(&file(&[1, 2, 2], 5)), "too long: its header says 1 x 2 x 2 bytes, 5 follow");
        let enormous = u32::MAX;
        assert!(problem(&file(&[enormous; 3], 5)).starts_with("truncated"));
    }
}
