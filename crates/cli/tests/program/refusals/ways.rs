//! Ways to stay in step and to send less that cannot be, and rows that cannot be compared.

use std::fs;

use crate::Place;

#[test]
fn ways_of_synchronising_take_what_they_can_use() {
    let place = Place::new();
    assert_eq!(place.refused("train --sync ddp --bucket 0"), "0 bytes a bucket: at least 1 is needed");
    assert_eq!(place.refused("train --sync ddp --bucket large"), "'large' is no size: write 4096, 64KiB or 1MB");
    assert_eq!(place.refused("train --bucket 1MiB"), "--bucket belongs to ddp and post-local-sgd, not to all-reduce");
    assert_eq!(
        place.refused("train --sync gather-scatter --algorithm tree"),
        "--algorithm belongs to all-reduce, ddp, local-sgd, post-local-sgd, diloco and sma, not to gather-scatter"
    );
    assert_eq!(
        place.refused("train --sync data-parallel --shard contiguous"),
        "--shard: in data-parallel rank 0 deals every batch out, and no worker has a shard"
    );
    for option in ["--transport shm", "--meet 127.0.0.1", "--tls", "--start-with nice", "--pin=false"] {
        let flag = option.split([' ', '=']).next().unwrap_or_default();
        assert_eq!(
            place.refused(&format!("train --launch threads {option}")),
            format!("{flag} is for worker processes; these workers are threads of one")
        );
    }
    assert_eq!(
        place.refused("train --accumulate 6"),
        "a step of 6 batches is longer than an epoch of 5: accumulate less"
    );
    assert_eq!(place.refused("train --batch-norm sync"), "--batch-norm sync: lenet5 has no batch norm");
    assert_eq!(
        place.refused("train --model resnet20 --dataset synthetic --batch-norm synch"),
        "unknown batch norm mode 'synch': known are local, broadcast, sync; nearest is 'sync'"
    );
    assert_eq!(
        place.refused("train --sync data-parallel --launch processes"),
        "data-parallel is one process: its workers are threads, not processes"
    );
    assert_eq!(
        place.refused("train --sync data-parallel --verify-every 5"),
        "--verify-every: data-parallel has one model, that of rank 0: nothing can differ"
    );
    assert_eq!(
        place.refused("train --verify-every 0"),
        "0 steps from one comparison of the ranks to the next: at least 1 is needed"
    );
    for seconds in ["0", "-1", "nan"] {
        assert!(
            place
                .refused(&format!("train --timeout {seconds}"))
                .ends_with("it must be positive, and at most a year in seconds")
        );
    }
    assert_eq!(place.refused("train --log-every 0"), "0 steps from line to line: at least 1 is needed");
    assert_eq!(
        place.refused("train --shard stride"),
        "unknown way to shard 'stride': known are strided, contiguous; nearest is 'strided'"
    );
}

/// Each gets one line before anything starts.
#[test]
fn options_of_ways_that_make_no_sense() {
    let place = Place::new();
    for (arguments, told) in [
        ("stale --staleness -1", "staleness is -1: it must be at least 0"),
        ("async --period -1", "period is -1: it must be at least 0 and at most a day"),
        ("local-sgd --period -0.5", "period is -0.5: it must be at least 0"),
        ("local-sgd --every 0", "0 steps from average to average: at least 1 is needed"),
        ("diloco --every -8", "-8 steps from average to average: at least 1 is needed"),
        (
            "local-sgd --every sometimes",
            "'sometimes' is no number of steps from average to average: write a number, or epoch",
        ),
        ("local-sgd --every 8 --period 1", "every and period are both given: which of them?"),
        ("parameter-server --servers 0", "0 servers: at least 1 is needed"),
        ("async --servers -2", "-2 servers: at least 1 is needed"),
        ("stale --servers 11", "11 servers for a model of 10 tensors: each needs at least one"),
        ("sma --learners 0", "0 learners: at least 1 is needed"),
        ("sma --pull 2", "pull is 2: it must be at least 0 and at most 1"),
        ("sma --central-momentum 1", "central-momentum is 1: it must be at least 0 and below 1"),
        ("diloco --outer-lr 0", "outer-lr is 0: it must be positive and finite"),
        ("diloco --outer-momentum -1", "outer-momentum is -1: it must be at least 0 and below 1"),
        ("post-local-sgd --switch-at -1", "switch-at is -1: it must be at least 0"),
        ("ddp --staleness 1", "--staleness belongs to stale, not to ddp"),
        ("sma --every 3", "--every belongs to local-sgd, post-local-sgd and diloco, not to sma"),
        ("single --staleness-aware", "--staleness-aware belongs to async, not to single"),
        ("all-reduce --slow 7:4", "slow: there is no rank 7 among 4 workers"),
        ("parameter-server --slow 4:4", "slow: there is no rank 4 among 4 workers"),
        ("ddp --slow 1:0.5", "slow's factor is 0.5: it must be at least 1 and at most a million"),
        ("ddp --slow 1:2:3", "slow's probability is 3: it must be at least 0 and at most 1"),
        ("ddp --slow -1:4", "--slow -1:4: write RANK:FACTOR or RANK:FACTOR:PROBABILITY, as in 3:4 or 3:4:0.1"),
        ("ddp --net bandwidth=0Mbit", "--net bandwidth=0Mbit: a bandwidth is at least 1kbit a second"),
        ("ddp --net fast", "--net fast: write bandwidth=100Mbit,latency=1ms, or one of the two"),
        (
            "ddp --algorithm direct --net latency=1ms",
            "direct needs memory that workers share, which --net takes from them",
        ),
        ("ddp --start-with nice --net latency=1ms", "--net shapes links within this machine: not with --start-with"),
        ("ddp --meet 10.0.0.1 --net latency=1ms", "--net shapes links within this machine: not with --meet"),
        ("data-parallel --net latency=1ms", "--net: data-parallel is one process, with no network between its workers"),
        ("ddp --target 101%", "target is 1.01: it must be above 0 and at most 1, which is 100%"),
        ("ddp --target 0", "target is 0: it must be above 0 and at most 1, which is 100%"),
    ] {
        assert_eq!(place.refused(&format!("train --sync {arguments}")), told);
    }
    assert!(!place.path("runs").exists());
}

#[test]
fn compressions_that_make_no_sense() {
    let place = Place::new();
    for (arguments, told) in [
        ("ddp --compress power-sgd --rank 0", "a rank of 0: at least 1 is needed"),
        ("ddp --compress power-sgd --rank -1", "a rank of -1: at least 1 is needed"),
        ("ddp --compress top-k --keep 0%", "top-k's keep is 0: it must be above 0 and at most 1"),
        ("ddp --compress random-k --keep 2", "random-k's keep is 2: it must be above 0 and at most 1"),
        ("ddp --compress top-k --keep some", "'some' is no share: write 0.01 or 1%"),
        ("ddp --compress threshold --threshold -1", "threshold's threshold is -1: it must be at least 0"),
        ("ddp --compress dgc --sparsity-warm-up -1", "sparsity-warm-up is -1: it must be at least 0"),
        ("ddp --compress dgc --clip-norm 0", "dgc's clip is 0: it must be positive and finite"),
        ("ddp --compress top-k --rank 2", "--rank belongs to power-sgd, not to top-k"),
        ("ddp --keep 1%", "--keep belongs to top-k, random-k and dgc, not to none"),
        (
            "ddp --compress dgc --optimizer adam",
            "dgc takes over the momentum of plain sgd: it goes with no other optimizer, nor with Nesterov's momentum",
        ),
        ("single --compress int8", "single cannot use int8: one worker sends nothing"),
        ("gather-scatter --compress sign", "gather-scatter cannot use sign: rank 0 averages whole gradients"),
        ("none --compress fp16", "none cannot use fp16: its workers send nothing"),
        ("ddp --compress none,fp16", "train runs one compression, not 2: choose with --compress, or use compare"),
        (
            "ddp --compress topk",
            "unknown compression 'topk': known are none, fp16, bf16, int8, int4, sign, top-k, random-k, threshold, dgc, \
             power-sgd; nearest is 'top-k'",
        ),
    ] {
        assert_eq!(place.refused(&format!("train --sync {arguments}")), told);
    }
    assert!(!place.path("runs").exists());
}

#[test]
fn rows_that_cannot_be_compared() {
    let place = Place::new();
    let refused = |text: &str| {
        fs::write(place.path("x.toml"), text).unwrap();
        place.refused("compare x.toml")
    };
    assert_eq!(
        refused("lr = 0.1\n[[row]]\nsync = \"ddp\"\nmodel = \"mlp\"\n"),
        "x.toml, line 4: `model` is for all rows: none can have its own"
    );
    assert_eq!(refused("lr = 0.1\nrow = 3\n"), "x.toml, line 2: each row begins with [[row]]");
    assert_eq!(refused("row = [3]\n"), "x.toml, line 1: each row begins with [[row]]");
    assert_eq!(
        refused("[[row]]\nsync = \"ddp\"\n[[row]]\nsync = \"single\"\nbuckets = 3\n"),
        "x.toml, line 5: unknown field `buckets`; nearest is `bucket`"
    );
    assert_eq!(
        refused("[[row]]\nsync = \"ddp\"\n[[row]]\nsync = \"single\"\nbucket = \"1kB\"\n"),
        "--bucket belongs to ddp and post-local-sgd, not to single"
    );
    assert_eq!(refused("[[row]]\nsync = \"ddp\"\n[[row]]\nsync = \"ddp\"\n"), "ddp, ring is given twice");
    assert_eq!(
        place.refused("train x.toml"),
        "train runs one way of synchronising, not 2: choose with --sync, or use compare"
    );
    place.ok("train x.toml --sync ddp --steps 1");
}
