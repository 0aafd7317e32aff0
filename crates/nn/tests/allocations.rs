//! Once warm, a training step allocates nothing; and what was allocated until then is what the network said.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use ringstep_cpu::Level;
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::team::Team;
use ringstep_nn::{Architecture, Model};

/// The system's allocator; counts what all threads ask it for.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that are in use.
static IN_USE: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        IN_USE.fetch_add(size as isize - layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn allocations_of(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// One test, so that no other's allocations are counted.
#[test]
fn a_warm_step_allocates_nothing_and_the_first_what_was_said() {
    assert!(allocations_of(|| drop(std::hint::black_box(vec![0; 100]))) > 0, "allocations are not counted");
    // Twelve images are enough for Winograd's algorithm on all of vgg11's maps.
    let jobs =
        [(Architecture::LeNet5, 5), (Architecture::Cnn, 5), (Architecture::Vgg11, 12), (Architecture::ResNet18, 4)];
    for (architecture, batch) in jobs {
        for threads in [1, 2] {
            let network = architecture.network();
            let said = network.memory(batch, threads).unwrap();
            let before = IN_USE.load(Ordering::Relaxed);
            let mut model = Model::new(&network, batch, Team::new(threads, Level::best())).unwrap();
            model.initialise(0);
            let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 };
            let mut sgd = Optimizer::new(rule, &mut model);
            let images: Vec<f32> = (0..batch * model.input().len()).map(|index| (index as f32).sin()).collect();
            let labels: Vec<u8> = (0..batch).map(|image| image as u8 % 10).collect();
            let mut step = || {
                model.forward(&images, &labels);
                model.backward(&images, &labels, 1.0 / batch as f32);
                let (team, values, gradients) = model.for_optimizer();
                sgd.step(team, values, gradients, 0.01);
            };
            step();
            let used = (IN_USE.load(Ordering::Relaxed) - before) as usize;
            // Beside the model there are the momentum and the images; names and shapes are small.
            let expected = said.total() + said.gradients + size_of_val(&images[..]);
            let name = architecture.name();
            assert!(
                (expected..expected + expected / 50 + (64 << 10)).contains(&used),
                "{name}: {used}, not {expected}"
            );
            // A thread of the team that starts late allocates as it starts, maybe within a later step: the calmest counts.
            let count = (0..5).map(|_| allocations_of(&mut step)).min();
            assert_eq!(count, Some(0), "{name} on {threads} threads");
        }
    }
}
