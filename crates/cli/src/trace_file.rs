//! trace.json: what went on when on each rank, in the form that Perfetto and chrome://tracing open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ringstep_train::trace::{Kind, Span, Track};
use serde_json::{Value, json};

/// The file is a whole document at any time, so whatever kills the run leaves it valid: each addition is one write, which
/// begins over the old end and brings its own.
pub struct TraceFile {
    path: PathBuf,
    file: File,
    /// Where the end begins.
    length: u64,
}

const BEGIN: &str = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
const END: &str = "\n]}\n";

fn track_number(track: Track) -> usize {
    match track {
        Track::Computation => 0,
        Track::Communication => 1,
    }
}

impl TraceFile {
    /// Begins the file with the names of the ranks and their tracks; those behind the workers are servers.
    pub fn create(path: &Path, workers: usize, servers: usize) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let name = |what: &str, rank: usize, track: usize, name: Value| json!({ "ph": "M", "name": what, "pid": rank, "tid": track, "args": { "name": name } });
        let title = |rank: usize| match rank.checked_sub(workers) {
            Some(server) => format!("rank {rank}, server {server}"),
            None => format!("rank {rank}"),
        };
        let rank = |rank: usize| {
            let tracks = [(Track::Computation, "computation"), (Track::Communication, "communication")];
            let tracks = tracks.map(|(track, text)| name("thread_name", rank, track_number(track), text.into()));
            std::iter::once(name("process_name", rank, 0, title(rank).into())).chain(tracks)
        };
        let names: Vec<String> = (0..workers + servers).flat_map(rank).map(|event| event.to_string()).collect();
        let mut trace = Self { path: path.to_owned(), file, length: 0 };
        trace.write(&format!("{BEGIN}{}", names.join(",\n")))?;
        Ok(trace)
    }

    /// The same with what an earlier trace tells of the steps before each rank's `done`. Returns that, by rank.
    pub fn resume(path: &Path, workers: usize, done: &[usize]) -> Result<(Self, Vec<Vec<Span>>)> {
        let spans = spans_before(&fs::read(path).unwrap_or_default(), done);
        let mut trace = Self::create(path, workers, done.len() - workers)?;
        for (rank, spans) in spans.iter().enumerate() {
            trace.add(rank, spans)?;
        }
        Ok((trace, spans))
    }

    /// Adds what a rank has done.
    pub fn add(&mut self, rank: usize, spans: &[Span]) -> Result<()> {
        let events: String = spans.iter().map(|span| format!(",\n{}", event(rank, span))).collect();
        self.write(&events)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let whole = format!("{text}{END}");
        self.file.write_all_at(whole.as_bytes(), self.length).with_context(|| self.path.display().to_string())?;
        self.length += text.len() as u64;
        Ok(())
    }
}

/// What a trace tells of the steps before each rank's `done`. One that cannot be read tells nothing: nothing depends on it.
pub(crate) fn spans_before(text: &[u8], done: &[usize]) -> Vec<Vec<Span>> {
    let mut spans = vec![Vec::new(); done.len()];
    if let Ok(Value::Object(trace)) = serde_json::from_slice(text) {
        for event in trace.get("traceEvents").and_then(Value::as_array).into_iter().flatten() {
            if let Some((rank, span)) = span(event)
                && done.get(rank).is_some_and(|&done| span.step < done)
            {
                spans[rank].push(span);
            }
        }
    }
    spans
}

/// A complete event; times in microseconds.
fn event(rank: usize, span: &Span) -> Value {
    json!({
        "ph": "X",
        "name": span.name,
        "cat": span.kind.name(),
        "pid": rank,
        "tid": track_number(span.track),
        "ts": span.began * 1e6,
        "dur": span.seconds * 1e6,
        "args": { "step": span.step },
    })
}

/// What an event says, and of which rank.
fn span(event: &Value) -> Option<(usize, Span)> {
    let track =
        [Track::Computation, Track::Communication].into_iter().find(|&track| event["tid"] == track_number(track))?;
    let kind = Kind::ALL.into_iter().find(|kind| event["cat"] == kind.name())?;
    let [began, seconds] = [event["ts"].as_f64()?, event["dur"].as_f64()?].map(|microseconds| microseconds / 1e6);
    let (name, step) = (event["name"].as_str()?.to_owned(), event["args"]["step"].as_u64()? as usize);
    Some((event["pid"].as_u64()? as usize, Span { track, name, kind, step, began, seconds }))
}

#[cfg(test)]
mod tests {
    use ringstep_train::trace::Kind;

    use super::*;

    /// A reader at any moment, such as after a kill, finds a whole document.
    #[test]
    fn the_file_is_valid_after_every_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let events = || -> Vec<Value> {
            let document: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            document["traceEvents"].as_array().unwrap().clone()
        };
        let mut trace = TraceFile::create(&path, 1, 1).unwrap();
        assert_eq!(events().len(), 6);
        let names: Vec<Value> = events().iter().step_by(3).map(|event| event["args"]["name"].clone()).collect();
        assert_eq!(names, ["rank 0", "rank 1, server 0"]);
        let span = |name: &str, step| Span {
            track: Track::Communication,
            name: name.to_owned(),
            kind: Kind::Communication,
            step,
            began: 0.25,
            seconds: 1e-3,
        };
        for step in 0..5 {
            trace.add(1, &[span("bucket \"0\"", step), span("bucket 1", step)]).unwrap();
            assert_eq!(events().len(), 6 + 2 * (step + 1));
        }
        let last = events().pop().unwrap();
        assert_eq!(
            (last["pid"].clone(), last["ts"].clone(), last["dur"].clone()),
            (json!(1), json!(250_000.0), json!(1000.0))
        );
    }
}
