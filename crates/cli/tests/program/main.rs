//! The whole program, as a user runs it.
//!
//! | look for | in |
//! | --- | --- |
//! | the main job and what it leaves behind | [`compare`] |
//! | one job: initial weights, experiment files, the course's lines | [`train`] |
//! | timing collectives, and training over each of them | [`bench`] |
//! | how good a trained model is | [`eval`] |
//! | Ctrl-C, a worker that dies, a launcher that is killed | [`endings`] |
//! | the tables of a scaling lab | [`scaling`] |
//! | processes that somebody else has started | [`cluster`] |
//! | workers that die under a job that goes on | [`faults`] |
//! | the same where somebody else has started them | [`successors`] |
//! | everything that is refused, and in which words | [`refusals`] |
//! | checkpoints, and runs that go on from one | [`resume`] |
//! | a trained model in integers | [`quantize`] |
//! | a job on clusters of any size | [`simulate`] |
//! | `data get` and `data list` | [`data`] |
//! | a collective step by step | [`explain`] |
//! | the accelerator Eyeriss | [`eyeriss`] |

mod bench;
mod cluster;
mod compare;
mod data;
mod endings;
mod eval;
mod explain;
mod eyeriss;
mod faults;
mod quantize;
mod refusals;
mod resume;
mod scaling;
mod simulate;
mod successors;
mod train;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A folder to run in, with a home of its own: no test sees the user's data or another test's.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        // Ctrl-C counts even where tests run in the background of a shell, which lets what it starts ignore that.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=INT", env!("CARGO_BIN_EXE_ringstep")])
            .args(arguments.split_whitespace())
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .env_remove("XDG_CACHE_HOME")
            .env("RUST_BACKTRACE", "1");
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs something that must succeed, and returns its standard output.
    fn ok(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs something that must succeed, and parses the JSON that is all of its standard output.
    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// Runs something that must be refused with one clear line, and returns that line.
    fn refused(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments}: {:?}: {errors}", output.status);
        assert_eq!(errors.lines().count(), 1, "{arguments}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stdout));
        errors.trim_end().strip_prefix("error: ").expect("it begins with error:").to_owned()
    }
}

/// The weights that PyTorch made, for the tests that compare with it.
fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/reference").join(name)
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}
