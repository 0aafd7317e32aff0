//! Images that a page can hold in itself: PNG, as an address that is the content.

use std::io::{self, Write};

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use ringstep_data::Shape;

/// The address of an image, of which one channel is grey, and the first three of more are red, green and blue.
pub fn data_uri(shape: Shape, pixels: &[u8]) -> io::Result<String> {
    Ok(format!("data:image/png;base64,{}", base64(&png(shape, pixels)?)))
}

fn png(shape: Shape, pixels: &[u8]) -> io::Result<Vec<u8>> {
    let Shape { height, width, channels } = shape;
    let (shown, colour_type) = if channels < 3 { (1, 0) } else { (3, 2) };
    let mut header: Vec<u8> = [width, height].iter().flat_map(|&size| (size as u32).to_be_bytes()).collect();
    header.extend([8, colour_type, 0, 0, 0]); // 8 bits a channel; the rest is the only way there is.
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in pixels.chunks_exact(width * channels) {
        rows.write_all(&[0])?; // Each row is told as it is, not by its difference from the last.
        for pixel in row.chunks_exact(channels) {
            rows.write_all(&pixel[..shown])?;
        }
    }
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, content) in [(b"IHDR", header), (b"IDAT", rows.finish()?), (b"IEND", Vec::new())] {
        png.extend((content.len() as u32).to_be_bytes());
        let mut sum = Crc::new();
        for part in [&name[..], &content] {
            sum.update(part);
            png.extend(part);
        }
        png.extend(sum.sum().to_be_bytes());
    }
    Ok(png)
}

/// RFC 4648.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().chain(&[0; 2]).take(3).fold(0, |bits, &byte| bits << 8 | usize::from(byte));
        // Three bytes are four digits, two are three, one is two.
        for digit in 0..4 {
            let shown = digit <= three.len();
            text.push(if shown { DIGITS[bits >> (18 - 6 * digit) & 63].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;

    use super::*;

    /// Name and content of each chunk.
    fn chunks(png: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n").unwrap();
        let mut chunks = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (content, after) = after[4..].split_at(u32::from_be_bytes(*length) as usize);
            chunks.push((String::from_utf8(rest[4..8].to_vec()).unwrap(), content.to_vec()));
            rest = &after[4..];
        }
        chunks
    }

    #[test]
    fn the_pixels_are_in_the_file() {
        let grey: (&[u8], &[u8]) = (&[1, 2, 3, 4, 5, 6], &[0, 1, 2, 3, 0, 4, 5, 6]);
        let colours: (&[u8], &[u8]) = (&[1, 2, 3, 9, 4, 5, 6, 9], &[0, 1, 2, 3, 0, 4, 5, 6]);
        for (shape, (pixels, rows), colour_type) in [(Shape::new(2, 3, 1), grey, 0), (Shape::new(2, 1, 4), colours, 2)]
        {
            let png = png(shape, pixels).unwrap();
            let chunks = chunks(&png);
            assert_eq!(chunks.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["IHDR", "IDAT", "IEND"]);
            let size = [0, 0, 0, shape.width as u8, 0, 0, 0, shape.height as u8];
            assert_eq!(chunks[0].1, [&size[..], &[8, colour_type, 0, 0, 0]].concat());
            let mut unpacked = Vec::new();
            ZlibDecoder::new(&chunks[1].1[..]).read_to_end(&mut unpacked).unwrap();
            assert_eq!(unpacked, rows);
            // The checksum of the empty last chunk is the same in every PNG.
            assert!(png.ends_with(&[0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82]));
        }
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }
}
