//! Getting a data set from a real server on this machine: what works, and what must leave nothing behind.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;
use ringstep_data::DataError;
use ringstep_data::fetch::{self, Origin, Packing, Piece, Source};
use ringstep_data::file::{gunzip, sha256};

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(300_000).collect()
}

fn packed(name: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(&content(name)).unwrap();
    encoder.finish().unwrap()
}

fn forever<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A data set of two files with these mirrors.
fn source(mirrors: Vec<String>) -> Source {
    let pieces: Vec<Piece> =
        ["first", "second"].into_iter().map(|name| Piece { name, sha256: forever(sha256(&content(name))) }).collect();
    let mirrors: Vec<&'static str> = mirrors.into_iter().map(|mirror| forever(mirror).as_str()).collect();
    Source {
        name: "test",
        summary: "",
        licence: "",
        files: forever(pieces),
        packing: Packing::Gzip,
        mirrors: forever(mirrors),
        load: |folder| Err(DataError::NoFolder(folder.to_owned())),
    }
}

/// The same, but mirrors have its files in an archive.
fn archived(mirrors: Vec<String>) -> Source {
    Source { packing: Packing::Archive("all.tar.gz"), ..source(mirrors) }
}

/// An archive with these files, in a folder, beside one that nobody wants.
fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::none()));
    for (name, content) in files.iter().chain(&[("readme.html", b"not wanted".to_vec())]) {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("folder/{name}"), &content[..]).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn right_archive() -> Vec<u8> {
    archive(&[("first", content("first")), ("second", content("second"))])
}

/// What the server says: the length that it promises, and the bytes that it sends before it hangs up.
type Answer = (usize, Vec<u8>);

fn serve(answers: HashMap<&'static str, Answer>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/files", listener.local_addr().unwrap());
    let answers = Arc::new(answers);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answers) = (stream.unwrap(), Arc::clone(&answers));
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
                lines.find(|line| line.is_empty());
                let _ = match answers.get(path.strip_prefix("/files/").unwrap()) {
                    Some((length, body)) => {
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body))
                    }
                    None => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
                };
            });
        }
    });
    address
}

fn whole(name: &str) -> Answer {
    (packed(name).len(), packed(name))
}

fn good_server() -> String {
    serve(HashMap::from([("first.gz", whole("first")), ("second.gz", whole("second"))]))
}

fn get(source: &Source, origin: &Origin, folder: &Path) -> Result<(), DataError> {
    fetch::get(source, origin, folder, &mut |_, _, _| ())
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_download_is_verified_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(vec![]);
    let mut seen = Vec::new();
    fetch::get(&source, &Origin::Url(good_server()), folder.path(), &mut |file, done, total| {
        seen.push((file.to_owned(), done, total));
    })
    .unwrap();
    assert_eq!(files(folder.path()), ["first.gz", "second.gz"]);
    assert_eq!(gunzip(fs::read(folder.path().join("first.gz")).unwrap()).unwrap(), content("first"));
    let length = packed("second").len() as u64;
    assert_eq!(seen.last().unwrap(), &("second.gz".to_owned(), length, Some(length)));

    // What is there and right is not asked for again.
    get(&source, &Origin::Url("http://127.0.0.1:1".into()), folder.path()).unwrap();
}

#[test]
fn the_next_mirror_helps_out() {
    let folder = tempfile::tempdir().unwrap();
    let without_second = serve(HashMap::from([("first.gz", whole("first"))]));
    get(&source(vec![without_second, good_server()]), &Origin::Mirrors, folder.path()).unwrap();
    assert_eq!(files(folder.path()), ["first.gz", "second.gz"]);
}

/// A connection that breaks, a page in place of a file, another file, no file.
#[test]
fn whatever_is_wrong_leaves_nothing_behind() {
    let half = packed("first")[..1000].to_vec();
    let answers: [(&str, Option<Answer>); 5] = [
        ("http", Some((packed("first").len(), half.clone()))),
        ("not a whole gzip file", Some((half.len(), half))),
        ("its sha256 is", Some((5, b"sorry".to_vec()))),
        ("its sha256 is", Some(whole("second"))),
        ("404", None),
    ];
    for (complaint, answer) in answers {
        let folder = tempfile::tempdir().unwrap();
        let url = serve(answer.into_iter().map(|answer| ("first.gz", answer)).collect());
        let error = get(&source(vec![url]), &Origin::Mirrors, folder.path()).unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
        assert!(error.contains("`ringstep data get test --from DIR`"), "{error}");
        assert_eq!(error.lines().count(), 1);
        assert!(files(folder.path()).is_empty(), "{complaint}");
    }
}

#[test]
fn a_folder_will_do_packed_or_not_and_damage_is_mended() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("first"), content("first")).unwrap();
    fs::write(from.path().join("second.gz"), packed("second")).unwrap();
    let source = source(vec![]);
    let origin = Origin::Folder(from.path().to_owned());
    get(&source, &origin, to.path()).unwrap();
    assert_eq!(files(to.path()), ["first", "second.gz"]);

    fs::write(to.path().join("first"), "damaged").unwrap();
    assert!(fetch::verify(to.path(), &source.files[0]).is_err());
    get(&source, &origin, to.path()).unwrap();
    assert!(source.files.iter().all(|piece| fetch::verify(to.path(), piece).is_ok()));
}

/// A damaged `name.gz` must not hide a right `name` that has just been put beside it.
#[test]
fn a_damaged_packed_file_gives_way_to_an_unpacked_one() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["first", "second"] {
        fs::write(from.path().join(name), content(name)).unwrap();
    }
    fs::write(to.path().join("first.gz"), "damaged").unwrap();
    let source = source(vec![]);
    get(&source, &Origin::Folder(from.path().to_owned()), to.path()).unwrap();
    assert!(source.files.iter().all(|piece| fetch::verify(to.path(), piece).is_ok()));
}

#[test]
fn an_archive_is_verified_and_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let url = serve(HashMap::from([("all.tar.gz", (right_archive().len(), right_archive()))]));
    let source = archived(vec![url]);
    get(&source, &Origin::Mirrors, folder.path()).unwrap();
    assert_eq!(files(folder.path()), ["first", "second"]);
    assert_eq!(fs::read(folder.path().join("second")).unwrap(), content("second"));
    get(&source, &Origin::Url("http://127.0.0.1:1".into()), folder.path()).unwrap();

    // Only what is damaged is replaced.
    fs::write(folder.path().join("first"), "damaged").unwrap();
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("first"), content("first")).unwrap();
    get(&source, &Origin::Folder(from.path().to_owned()), folder.path()).unwrap();
    assert!(source.files.iter().all(|piece| fetch::verify(folder.path(), piece).is_ok()));
}

#[test]
fn an_archive_that_is_wrong_leaves_nothing_behind() {
    let whole = right_archive();
    for (complaint, bytes) in [
        ("not a whole tar.gz archive", whole[..whole.len() / 2].to_vec()),
        ("not a whole tar.gz archive", b"<html>sorry</html>".to_vec()),
        ("there is no second in it", archive(&[("first", content("first"))])),
        ("second in it: its sha256 is", archive(&[("first", content("first")), ("second", content("first"))])),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let url = serve(HashMap::from([("all.tar.gz", (bytes.len(), bytes))]));
        let error = get(&archived(vec![url]), &Origin::Mirrors, folder.path()).unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
        assert!(error.contains("get all.tar.gz elsewhere, put it into a folder DIR"), "{error}");
        assert!(files(folder.path()).is_empty(), "{complaint}");
    }
}

#[test]
fn a_folder_may_hold_the_archive_or_its_files() {
    let source = archived(vec![]);
    for packed in [true, false] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        match packed {
            true => fs::write(from.path().join("all.tar.gz"), right_archive()).unwrap(),
            false => {
                ["first", "second"].iter().for_each(|name| fs::write(from.path().join(name), content(name)).unwrap())
            }
        }
        get(&source, &Origin::Folder(from.path().to_owned()), to.path()).unwrap();
        assert_eq!(files(to.path()), ["first", "second"]);
    }
}
