//! Batches that are ready when they are wanted: a thread fills them ahead.
//!
//! A few buffers go round: the thread takes an empty one, fills it, and sends it over; the consumer uses it and sends it
//! back. Whoever owns a buffer may write to it, so nothing is locked; and once each has been filled nothing is allocated.

use std::io;
use std::mem;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use ringstep_cpu::cores::thread_seconds;

use crate::Images;
use crate::augment::{Augment, Views};
use crate::canvas::Canvas;
use crate::shard::{Shard, batch_of};

/// Images and labels, ready for a network.
#[derive(Debug, Default)]
pub struct Batch {
    /// Padded and normalised. // N,H,W,C
    pub images: Vec<f32>,
    /// One an image. // N
    pub labels: Vec<u8>,
    /// Seconds of a core that it took to fill it, and to hand it over.
    pub took: f64,
}

impl Batch {
    /// How many images it holds.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// What a loader is to load.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the images come from.
    pub images: Arc<Images>,
    /// Which of them, in which order, how many at once.
    pub shard: Shard,
    /// Batches in all; epochs follow each other until then.
    pub steps: usize,
    /// Batches that are left out at the beginning: someone had them before.
    pub skip: usize,
    /// What they are put on.
    pub canvas: Canvas,
    /// What happens to them at random.
    pub augment: Augment,
    /// Decides on that.
    pub seed: u64,
}

/// Batches that wait for the consumer. With the one in its hands, three buffers go round.
const AHEAD: usize = 2;

/// A plan's batches, one after the other.
#[derive(Debug)]
pub struct Loader {
    plan: Plan,
    /// The one in the consumer's hands.
    current: Batch,
    filled: Receiver<Batch>,
    /// `None` when the loader is about to end: it is how the thread learns of it.
    emptied: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Begins to fill batches.
    pub fn start(plan: Plan) -> io::Result<Self> {
        // Room for all buffers in both, so that nobody ever waits to hand one over.
        let (to_consumer, filled) = sync_channel(AHEAD + 1);
        let (emptied, to_thread) = sync_channel(AHEAD + 1);
        for _ in 0..AHEAD {
            emptied.send(Batch::default()).expect("its receiver is here");
        }
        let mut filler = Filler::new(plan.clone());
        let thread = thread::Builder::new().name("loader".to_owned()).spawn(move || {
            let mut began = thread_seconds();
            while let Ok(mut batch) = to_thread.recv() {
                batch.took = thread_seconds() - mem::replace(&mut began, thread_seconds());
                if !filler.fill(&mut batch) || to_consumer.send(batch).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { plan, current: Batch::default(), filled, emptied: Some(emptied), thread: Some(thread) })
    }

    /// Goes on behind so many of the plan's batches, wherever it is.
    pub fn seek(&mut self, batches: usize) -> io::Result<()> {
        *self = Self::start(Plan { skip: batches, ..self.plan.clone() })?;
        Ok(())
    }

    /// The next batch, `None` after the last. It may be empty: towards the end of an epoch some ranks run out of images
    /// before others. A panic of the thread goes on here.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend the batch")]
    pub fn next(&mut self) -> Option<&Batch> {
        if let Some(emptied) = &self.emptied {
            // The thread may have filled its last one and be gone.
            let _ = emptied.send(mem::take(&mut self.current));
        }
        match self.filled.recv() {
            Ok(batch) => {
                self.current = batch;
                Some(&self.current)
            }
            Err(_) => {
                if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
                    resume_unwind(panic);
                }
                None
            }
        }
    }
}

impl Loader {
    /// The batch that [`Loader::next`] has returned last.
    pub fn current(&self) -> &Batch {
        &self.current
    }
}

impl Drop for Loader {
    /// Waits for the batch that is being filled, and no longer.
    fn drop(&mut self) {
        self.emptied = None;
        if let Some(thread) = self.thread.take() {
            // Nobody asks for batches any more, so nobody misses one.
            let _ = thread.join();
        }
    }
}

/// How far a plan has come.
struct Filler {
    plan: Plan,
    filled: usize,
    /// This rank's images of the epoch.
    order: Vec<usize>,
    views: Views,
}

impl Filler {
    fn new(plan: Plan) -> Self {
        let views = plan.augment.epoch(plan.seed, 0);
        Self { filled: plan.skip, plan, order: Vec::new(), views }
    }

    /// Fills the next batch, or says that there is none.
    fn fill(&mut self, batch: &mut Batch) -> bool {
        let Plan { images, shard, steps, canvas, augment, seed, .. } = &self.plan;
        if self.filled >= *steps {
            return false;
        }
        let (epoch, step) = shard.place(self.filled);
        // At the beginning of an epoch, or of the loader.
        if step == 0 || self.filled == self.plan.skip {
            shard.epoch_into(epoch, &mut self.order);
            self.views = augment.epoch(*seed, epoch);
        }
        let indices = batch_of(&self.order, step, shard.batch);
        batch.labels.clear();
        batch.labels.extend(indices.iter().map(|&index| images.labels[index]));
        // Every number is written below; this only sets the length.
        batch.images.resize(indices.len() * canvas.len(), 0.0);
        for (numbers, &index) in batch.images.chunks_exact_mut(canvas.len()).zip(indices) {
            canvas.paint(images.image(index), self.views.of(index), numbers);
        }
        self.filled += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Dataset, Shape, synthetic};

    const SHAPE: Shape = Shape::new(6, 5, 3);

    fn data(images: usize) -> Dataset {
        synthetic::Recipe { shape: SHAPE, classes: 10, train: images, test: 1, seed: 1 }.make()
    }

    fn plan(data: &Dataset, rank: usize, world: usize, batch: usize, epochs: usize) -> Plan {
        let deal = crate::shard::Deal::Strided;
        let shard = Shard { images: data.train.len(), rank, world, batch, shuffle: Some(4), deal, taken: (0, 0) };
        Plan {
            images: Arc::clone(&data.train),
            steps: epochs * shard.steps(),
            skip: 0,
            shard,
            canvas: Canvas::new(data, 8, 8),
            augment: Augment { crop: true, flip: true },
            seed: 2,
        }
    }

    #[test]
    fn batches_hold_what_the_shard_says_and_the_canvas_makes_of_it() {
        let data = data(23);
        let plan = plan(&data, 1, 2, 4, 3);
        let mut loader = Loader::start(plan.clone()).unwrap();
        for epoch in 0..3 {
            let order = plan.shard.epoch(epoch);
            let mut views = plan.augment.epoch(plan.seed, epoch);
            for step in 0..plan.shard.steps() {
                let indices = batch_of(&order, step, 4);
                let batch = loader.next().unwrap();
                assert_eq!(batch.len(), indices.len());
                for (at, &index) in indices.iter().enumerate() {
                    let mut image = vec![0.0; plan.canvas.len()];
                    plan.canvas.paint(data.train.image(index), views.of(index), &mut image);
                    assert_eq!(batch.images[at * image.len()..][..image.len()], image);
                    assert_eq!(batch.labels[at], data.train.labels[index]);
                }
            }
        }
        assert!(loader.next().is_none());
        assert!(loader.next().is_none());
    }

    /// In each epoch all workers together see the same augmented images, however many they are.
    #[test]
    fn augmentation_does_not_depend_on_the_number_of_workers() {
        let data = data(37);
        let seen = |world: usize, batch: usize| {
            let mut counts: BTreeMap<(usize, Vec<u32>, u8), usize> = BTreeMap::new();
            for rank in 0..world {
                let plan = plan(&data, rank, world, batch, 2);
                let (steps, length) = (plan.shard.steps(), plan.canvas.len());
                let mut loader = Loader::start(plan).unwrap();
                for step in 0..2 * steps {
                    let batch = loader.next().unwrap();
                    for (image, &label) in batch.images.chunks_exact(length).zip(&batch.labels) {
                        let bits = image.iter().map(|number| number.to_bits()).collect();
                        *counts.entry((step / steps, bits, label)).or_default() += 1;
                    }
                }
            }
            counts
        };
        let alone = seen(1, 12);
        assert_eq!(alone.values().sum::<usize>(), 2 * 37);
        assert_eq!(alone, seen(2, 6));
        assert_eq!(alone, seen(5, 3));
    }

    #[test]
    fn three_buffers_go_round() {
        let data = data(50);
        let mut loader = Loader::start(plan(&data, 0, 1, 7, 20)).unwrap();
        let mut places = BTreeSet::new();
        let mut count = 0;
        while let Some(batch) = loader.next() {
            places.insert((batch.images.as_ptr() as usize, batch.labels.as_ptr() as usize));
            count += 1;
        }
        // An epoch's first batches are as long as any, so no buffer ever grows.
        assert_eq!((count, places.len()), (20 * 8, AHEAD + 1));
    }

    #[test]
    fn steps_may_end_within_an_epoch_or_at_once() {
        let data = data(20);
        for steps in [0, 1, 7] {
            let mut loader = Loader::start(Plan { steps, ..plan(&data, 0, 1, 5, 1) }).unwrap();
            let mut count = 0;
            while loader.next().is_some() {
                count += 1;
            }
            assert_eq!(count, steps);
        }
    }

    /// From wherever it was, to the middle of an epoch, to its beginning, and behind the end.
    #[test]
    fn it_goes_on_where_it_is_told() {
        let data = data(23);
        let plan = plan(&data, 1, 2, 4, 3);
        let all = |loader: &mut Loader| {
            let mut batches = Vec::new();
            while let Some(Batch { images, labels, .. }) = loader.next() {
                batches.push((images.clone(), labels.clone()));
            }
            batches
        };
        let mut loader = Loader::start(plan).unwrap();
        let expected = all(&mut loader);
        assert_eq!(expected.len(), 9);
        for skip in [4, 3, 0, 8, 9, 100] {
            loader.seek(skip).unwrap();
            assert_eq!(all(&mut loader), expected[skip.min(9)..], "{skip}");
            loader.seek(0).unwrap();
            loader.next().unwrap();
        }
    }

    #[test]
    fn it_can_be_dropped_at_any_time() {
        let data = data(20);
        for taken in 0..6 {
            let mut loader = Loader::start(plan(&data, 0, 1, 2, 1000)).unwrap();
            (0..taken).for_each(|_| assert!(loader.next().is_some()));
            drop(loader);
            // The thread is gone, and its share of the images with it.
            assert_eq!(Arc::strong_count(&data.train), 1);
        }
    }

    #[test]
    fn a_panic_of_the_thread_reaches_the_consumer() {
        let data = data(20);
        let mut plan = plan(&data, 0, 1, 10, 1);
        // The third batch holds images that do not exist.
        plan.shard.images = 40;
        plan.shard.shuffle = None;
        plan.steps = 4;
        let mut loader = Loader::start(plan).unwrap();
        assert!(loader.next().is_some() && loader.next().is_some());
        let panic = catch_unwind(AssertUnwindSafe(|| loader.next().is_some())).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("out of bounds"), "{message}");
    }
}
