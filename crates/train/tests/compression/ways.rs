//! Averages of models, and gradients on their way to servers.

use ringstep_train::compress::{Compression, Method};
use ringstep_train::job::Length;
use ringstep_train::strategy::Servers;
use ringstep_train::{Job, SyncMethod};

use crate::common::{Over, train};
use crate::{AT_FULL_RATE, IMAGES, assert_near, averaging, data, job, serving};

#[test]
fn at_full_rate_averages_and_servers_lose_nothing_either() {
    let data = data(IMAGES);
    for sync in averaging().into_iter().chain(serving()) {
        let plain = train(&job(sync, 3, None), Over::Mem, &data);
        for (method, error_feedback) in AT_FULL_RATE.into_iter().flat_map(|method| [(method, true), (method, false)]) {
            let compressed = train(&job(sync, 3, Compression { method, error_feedback }), Over::Mem, &data);
            assert_near(&format!("{method:?}, {sync:?}"), &compressed, &plain, 1e-4);
        }
    }
}

#[test]
fn averages_and_servers_learn_by_codes_and_repeat() {
    let data = data(IMAGES);
    for sync in averaging().into_iter().chain(serving()) {
        for method in [Method::Int8, Method::TopK { keep: 0.1 }, Method::Sign, Method::PowerSgd { rank: 1 }] {
            let job = Job { length: Length::Epochs(8), ..job(sync, 3, Compression::new(method)) };
            let [run, again] = [(); 2].map(|()| train(&job, Over::Mem, &data));
            assert_eq!(run.summary.weights_sha256, again.summary.weights_sha256, "{method:?}, {sync:?}");
            let (first, last) = (run.summary.epoch_losses[0], run.summary.train_loss);
            assert!(last < 0.95 * first, "{method:?}, {sync:?}: loss from {first} to {last}");
            let error = run.summary.compression_error.unwrap();
            assert!(error > 0.0 && error < 1.0, "{method:?}, {sync:?}: {error}");
            let of_steps = run.steps.iter().filter_map(|step| step.error);
            assert!(of_steps.clone().count() == run.steps.len() && of_steps.fold(0.0, f64::max) >= error);
        }
    }
}

/// Codes come on time or late, but nobody waits for them for ever.
#[test]
fn asynchronous_servers_learn_by_codes() {
    let data = data(IMAGES);
    let sync = SyncMethod::Async { servers: Servers::Apart(2), period: 0.0, staleness_aware: false };
    for method in [
        Method::Fp16,
        Method::TopK { keep: 0.2 },
        Method::Dgc { keep: 0.2, warm_up_epochs: 1, clip: None },
        Method::PowerSgd { rank: 1 },
    ] {
        let job = Job { length: Length::Epochs(8), ..job(sync, 3, Compression::new(method)) };
        let run = train(&job, Over::Mem, &data);
        let (first, last) = (run.summary.epoch_losses[0], run.summary.train_loss);
        assert!(last < 0.95 * first, "{method:?}: loss from {first} to {last}");
    }
}
