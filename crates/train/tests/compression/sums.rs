//! Gradients that are summed: the curve of one worker alone where nothing is left out, and learning where something is.

use ringstep_comm::Algorithm;
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer};
use ringstep_train::compress::{Compression, Method};
use ringstep_train::job::{Design, Length};
use ringstep_train::{Job, SyncMethod};

use crate::common::{ALL_REDUCE, Over, RING, train};
use crate::{AT_FULL_RATE, IMAGES, alone, assert_near, data, ddp, job, losses, serving, sgd};

/// Layers that multiply by matrices: the gradient of one has a rank of at most the images of a step.
fn perceptron() -> Network {
    let linear = |name: &str, outputs| Layer::new(name, Kind::Linear { outputs, bias: true });
    let layers = vec![linear("fc0", 40), Layer::new("", Kind::Tanh), linear("fc1", 4)];
    Network { input: [6, 6, 2], layers }
}

#[test]
fn at_full_rate_nothing_is_lost() {
    let data = data(IMAGES);
    for workers in [1, 2, 3, 5] {
        let single = train(&alone(3 * workers), Over::Mem, &data);
        for (method, error_feedback) in AT_FULL_RATE.into_iter().flat_map(|method| [(method, true), (method, false)]) {
            for sync in [ddp(1), ddp(3000), ddp(usize::MAX), ALL_REDUCE] {
                let job = job(sync, workers, Compression { method, error_feedback });
                let what = format!("{workers} workers, {method:?}, {sync:?}");
                assert_near(&what, &train(&job, Over::Mem, &data), &single, 1e-5);
            }
        }
    }
}

#[test]
fn every_algorithm_carries_codes() {
    let data = data(IMAGES);
    let single = train(&alone(9), Over::Mem, &data);
    for algorithm in Algorithm::ALL.map(Some).into_iter().chain([None]) {
        for method in [Method::RandomK { keep: 1.0 }, Method::PowerSgd { rank: 1000 }, Method::Fp16] {
            let sync = SyncMethod::Ddp { algorithm, bucket: Some(3000) };
            let run = train(&job(sync, 3, Compression::new(method)), Over::Mem, &data);
            assert_near(&format!("{method:?}, {sync:?}"), &run, &single, 1e-3);
        }
    }
}

/// Three workers with two images each: six vectors are enough.
#[test]
fn power_sgd_is_exact_where_gradients_have_its_rank() {
    let data = data(IMAGES);
    let of = |job| Job { model: Design::new("perceptron", perceptron()).unwrap(), ..job };
    let single = train(&of(alone(6)), Over::Mem, &data);
    let run = |rank, sync| {
        let job = of(Job { batch: 2, ..job(sync, 3, Compression::new(Method::PowerSgd { rank })) });
        train(&job, Over::Mem, &data)
    };
    for sync in [ddp(usize::MAX), ddp(1), ALL_REDUCE] {
        // Vectors that are nearly parallel cost some of the last digits.
        assert_near(&format!("{sync:?}"), &run(6, sync), &single, 1e-3);
        let too_few = losses(&run(3, sync));
        let far = |(ours, theirs): (&f64, &f64)| (ours - theirs).abs() > 1e-2 * theirs.abs();
        assert!(too_few.iter().zip(&losses(&single)).any(far), "{too_few:?}");
    }
    // Servers get each worker's own matrices, which have two; a third is for what rounding leaves to error feedback.
    for sync in serving() {
        assert_near(&format!("{sync:?}"), &run(3, sync), &single, 1e-3);
    }
}

#[test]
fn accumulated_batches_are_compressed_once() {
    let data = data(53);
    let single = train(&alone(18), Over::Mem, &data);
    for sync in [ddp(700), ALL_REDUCE] {
        let compressed = job(sync, 3, Compression::new(Method::TopK { keep: 1.0 }));
        let accumulating = Job { accumulate: 2, ..compressed };
        assert_near(&format!("{sync:?}"), &train(&accumulating, Over::Mem, &data), &single, 1e-5);
    }
}

#[test]
fn halves_are_close() {
    let data = data(IMAGES);
    let single = train(&alone(9), Over::Mem, &data);
    for (method, tolerance) in [(Method::Fp16, 1e-3), (Method::Bf16, 1e-2)] {
        for sync in [ddp(3000), ALL_REDUCE] {
            let run = train(&job(sync, 3, Compression::new(method)), Over::Mem, &data);
            assert_near(&format!("{method:?}, {sync:?}"), &run, &single, tolerance);
            assert_ne!(losses(&run), losses(&single));
        }
    }
}

/// Where everything is sent at once there is no momentum to correct, and factor masking leaves none: plain SGD.
#[test]
fn dgc_that_sends_everything_is_sgd_without_momentum() {
    let data = data(IMAGES);
    let single = train(&Job { rule: sgd(0.0), ..alone(9) }, Over::Mem, &data);
    let method = Method::Dgc { keep: 1.0, warm_up_epochs: 0, clip: None };
    let clipping = Method::Dgc { keep: 1.0, warm_up_epochs: 0, clip: Some(1e-3) };
    for sync in [ddp(3000), ALL_REDUCE].into_iter().chain(serving()) {
        let run = |method| train(&job(sync, 3, Compression::new(method)), Over::Mem, &data);
        assert_near(&format!("{sync:?}"), &run(method), &single, 1e-5);
        // Gradients as short as that hardly move anything.
        let (first, last) = (losses(&run(clipping))[0], *losses(&run(clipping)).last().unwrap());
        assert!((first - last).abs() < 0.5 * first, "{first} to {last}");
        assert_ne!(losses(&run(clipping)), losses(&single));
    }
}

/// `verify_every` compares the ranks after each step.
#[test]
fn at_its_defaults_each_keeps_ranks_equal_learns_and_repeats() {
    let data = data(IMAGES);
    for method in Method::ALL {
        for sync in [SyncMethod::Ddp { algorithm: RING, bucket: None }, ddp(2000), ALL_REDUCE] {
            let job = Job { length: Length::Epochs(8), ..job(sync, 4, Compression::new(method)) };
            let [run, again] = [(); 2].map(|()| train(&job, Over::Mem, &data));
            assert_eq!(run.summary.weights_sha256, again.summary.weights_sha256, "{method:?}, {sync:?}");
            let (first, last) = (run.summary.epoch_losses[0], run.summary.train_loss);
            assert!(last < 0.9 * first, "{method:?}, {sync:?}: loss from {first} to {last}");
        }
    }
}

#[test]
fn what_carries_the_codes_does_not_matter() {
    let data = data(IMAGES);
    for method in Method::ALL {
        let job = job(ddp(2000), 3, Compression::new(method));
        let [mem, tcp, shm] =
            [Over::Mem, Over::Tcp, Over::Shm].map(|over| train(&job, over, &data).summary.weights_sha256);
        assert_eq!(mem, tcp, "{method:?}");
        assert_eq!(mem, shm, "{method:?}");
    }
}

/// With and without error feedback it is another trajectory, for all that leave something out.
#[test]
fn any_method_can_wear_error_feedback() {
    let data = data(IMAGES);
    for method in Method::ALL.into_iter().filter(|method| !matches!(method, Method::Dgc { .. })) {
        let [with, without] = [true, false].map(|error_feedback| {
            train(&job(ddp(usize::MAX), 3, Compression { method, error_feedback }), Over::Mem, &data)
        });
        assert_ne!(with.summary.weights_sha256, without.summary.weights_sha256, "{method:?}");
    }
}
