//! Writes checkpoints beside the training.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

use ringstep_nn::state::Saved;

use super::{Checkpoints, FileSum, file, rank_file};
use crate::checkpoint::CheckpointError;
use crate::records::{Report, SavedRank};
use crate::snapshots::Snapshot;

/// Writes what it is handed, one checkpoint after the other, on a thread that it starts for the first.
pub(crate) struct Writer {
    checkpoints: Checkpoints,
    rank: usize,
    thread: Option<Thread>,
    /// Checkpoints that are not written yet.
    open: usize,
}

struct Thread {
    tasks: SyncSender<Task>,
    done: Receiver<SavedRank>,
    thread: JoinHandle<()>,
}

/// What belongs to a checkpoint.
pub(crate) struct Task {
    pub name: usize,
    pub state: Saved,
    /// All models that are to be tested at the end; those that are on disk already are not written again.
    pub tests: Vec<Arc<Snapshot>>,
}

impl Writer {
    pub fn new(checkpoints: &Checkpoints, rank: usize) -> Self {
        Self { checkpoints: checkpoints.clone(), rank, thread: None, open: 0 }
    }

    /// Begins to write. Waits until the one before is written: where a disk does not keep up, training goes as fast as it does.
    pub fn write(&mut self, task: Task, report: &mut dyn FnMut(Report)) -> io::Result<()> {
        while self.open > 0 {
            self.wait(report);
        }
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(start(self.checkpoints.clone(), self.rank)?),
        };
        thread.tasks.send(task).map_err(|_| io::Error::other("the thread that writes checkpoints has ended"))?;
        self.open += 1;
        Ok(())
    }

    /// Reports what has been written since the last time.
    pub fn report(&mut self, report: &mut dyn FnMut(Report)) {
        let Some(Thread { done, .. }) = &self.thread else { return };
        if self.open > 0 {
            match done.try_recv() {
                Ok(saved) => {
                    self.open -= 1;
                    report(Report::Saved(saved));
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.open = 0,
            }
        }
    }

    /// Waits until all is written, and reports it.
    pub fn finish(mut self, report: &mut dyn FnMut(Report)) {
        while self.open > 0 {
            self.wait(report);
        }
    }

    fn wait(&mut self, report: &mut dyn FnMut(Report)) {
        match self.thread.as_ref().map(|thread| thread.done.recv()) {
            Some(Ok(saved)) => {
                self.open -= 1;
                report(Report::Saved(saved));
            }
            _ => self.open = 0,
        }
    }
}

impl Drop for Writer {
    /// Waits for the thread: whoever takes this rank's place may write the same file again.
    fn drop(&mut self) {
        if let Some(Thread { tasks, done, thread }) = self.thread.take() {
            drop((tasks, done));
            let _ = thread.join();
        }
    }
}

fn start(checkpoints: Checkpoints, rank: usize) -> io::Result<Thread> {
    let (tasks, to_write) = sync_channel::<Task>(1);
    let (written, done) = sync_channel(1);
    let thread = thread::Builder::new().name("checkpoints".to_owned()).spawn(move || {
        let mut tests = BTreeMap::new();
        for task in to_write {
            let name = task.name;
            let files = write(&checkpoints, rank, task, &mut tests);
            let files = files.map_err(|(path, error)| format!("rank {rank}: {}: {error}", path.display()));
            if written.send(SavedRank { name, files }).is_err() {
                break;
            }
        }
    })?;
    Ok(Thread { tasks, done, thread })
}

/// Writes a checkpoint's files; `tests` are those that are there already, by their steps.
fn write(
    checkpoints: &Checkpoints,
    rank: usize,
    task: Task,
    tests: &mut BTreeMap<usize, FileSum>,
) -> Result<Vec<FileSum>, (PathBuf, io::Error)> {
    let folder = checkpoints.partial(task.name);
    let mut files = vec![write_file(&rank_file(&folder, rank), "", &task.state)?];
    for test in task.tests {
        let step = test.when.step;
        files.push(match tests.entry(step) {
            Entry::Occupied(there) => there.get().clone(),
            Entry::Vacant(new) => {
                let path = test_file(&checkpoints.folder, step);
                new.insert(write_file(&path, "../tests/", &test.saved())?).clone()
            }
        });
    }
    Ok(files)
}

/// A model that was kept after a step to be tested.
pub(crate) fn test_file(checkpoints: &Path, step: usize) -> PathBuf {
    checkpoints.join("tests").join(format!("{step}.safetensors"))
}

/// Writes a model that is to be tested, and waits until it is written.
pub(crate) fn write_test(checkpoints: &Path, test: &Snapshot) -> Result<(), CheckpointError> {
    let written = write_file(&test_file(checkpoints, test.when.step), "", &test.saved());
    written.map(drop).map_err(|(path, error)| CheckpointError::Io { path, error })
}

fn write_file(path: &Path, before: &str, state: &Saved) -> Result<FileSum, (PathBuf, io::Error)> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| file::write(path, state));
    let sha256 = written.map_err(|error| (path.to_owned(), error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(FileSum { path: format!("{before}{name}"), sha256 })
}
