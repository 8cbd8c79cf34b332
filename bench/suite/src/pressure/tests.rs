//! Virtual time follows its conditions.

use super::Policy;
use super::figures::Slowdown;
use super::world::{Conditions, Run, Setup, simulate};
use honeycomb_workload::{Fit, JobPlan, Shape, TRANSFER_SHARE, TransferCost, fitted, mapreduce};

const COST: TransferCost = TransferCost { read: 1e9, write: 0.3e9, file_s: 0.4e-3 };
const FILE: u64 = 4 << 20;

fn conditions() -> Conditions {
    Conditions {
        block: 256 << 10,
        servers: 1,
        cost: COST,
        network: 1.2e9,
        disk: 500e6,
        disk_request_s: 1e-4,
        object_read_s: 12.1e-3,
        object_write_s: 25.8e-3,
        object: 70e6,
    }
}

fn jobs(seed: u64) -> Vec<JobPlan> {
    let shape = Shape {
        file: FILE,
        file_spread: 0.5,
        stages: (4, 12),
        tasks_spread: 1.0,
        width: 2,
        sources: 0.3,
        joins: 0.5,
        job: 7.0 * FILE as f64,
        job_spread: 1.0,
    };
    let demand = fitted(Fit { seed, tenants: 24 }).scaled(10.0, 44 << 20);
    mapreduce(&demand, COST, shape, seed)
}

fn run(jobs: &[JobPlan], policy: Policy, memory: Option<u64>) -> Run {
    simulate(jobs, conditions(), Setup { memory, ..Setup::of(policy) })
}

/// One job: a stage of one task, and a stage that reads its file.
fn two_tasks(bytes: u64) -> Vec<JobPlan> {
    let mut jobs = jobs(1);
    let mut job = jobs.swap_remove(0);
    job.arrival = 0.0;
    job.stages.truncate(2);
    for (number, stage) in job.stages.iter_mut().enumerate() {
        stage.tasks.truncate(1);
        stage.tasks[0].bytes = bytes;
        stage.tasks[0].compute_s = 0.0;
        stage.tasks[0].reads.clear();
        stage.inputs.clear();
        if number == 1 {
            let read = honeycomb_workload::Read { stage: 0, task: 0, offset: 0, bytes };
            stage.tasks[0].reads.push(read);
            stage.inputs.push(0);
        }
    }
    vec![job]
}

#[test]
fn a_task_takes_what_its_tier_takes() {
    let bytes = FILE as f64;
    let jobs = two_tasks(FILE);
    let (write, read) = (bytes / COST.write + COST.file_s, bytes / COST.read + COST.file_s);
    let near = |run: Run, seconds: f64| {
        let took = run.seconds[0];
        assert!((took / seconds - 1.0).abs() < 1e-9, "{took} is not {seconds}");
    };
    // The network of 1.2 GB/s is faster than one stream.
    near(run(&jobs, Policy::Block, None), 2.0 * write + read);
    near(run(&jobs, Policy::Static, None), 2.0 * write + read);
    let object = 2.0 * (25.8e-3 + bytes / 70e6) + 12.1e-3 + bytes / 70e6 + 3.0 * COST.file_s;
    near(run(&jobs, Policy::Static, Some(0)), object);
    // A write is received while the disk writes; a read is sent after the disk has read.
    let down = bytes / 500e6 + 4.0 * 1e-4 + bytes / COST.write;
    let up = bytes / 500e6 + 16.0 * 1e-4 + read;
    near(run(&jobs, Policy::JobPeak, Some(0)), 2.0 * down + up);
    // An idle disk is faster than the object store.
    near(run(&jobs, Policy::Block, Some(0)), 2.0 * down + up);
}

#[test]
fn with_enough_memory_nothing_is_spilled_and_all_policies_are_one() {
    let jobs = jobs(1);
    let free = run(&jobs, Policy::Block, None);
    let plenty = free.peak_blocks * conditions().block * 100;
    for policy in [Policy::Static, Policy::StaticKeeps, Policy::JobPeak, Policy::Block] {
        let run = run(&jobs, policy, Some(plenty));
        assert_eq!((run.disk_written, run.object_written), (0, 0), "{policy:?}");
        assert_eq!(run.seconds, free.seconds, "{policy:?}");
        assert_eq!(run.written, free.written);
    }
    let written: u64 = jobs.iter().map(JobPlan::written).sum();
    assert_eq!(free.written, written);
    assert_eq!(free.moved, written + jobs.iter().map(JobPlan::read).sum::<u64>());
}

#[test]
fn less_memory_is_slower_and_is_never_overdrawn() {
    let jobs = jobs(2);
    let peak = run(&jobs, Policy::Block, None).peak_blocks * conditions().block;
    for policy in [Policy::Static, Policy::StaticKeeps, Policy::JobPeak, Policy::Block] {
        let all = run(&jobs, policy, Some(peak));
        let mut last = 0.0;
        for pct in [100, 60, 20] {
            let run = run(&jobs, policy, Some(peak * pct / 100));
            assert!(run.peak_blocks * conditions().block <= peak * pct / 100, "{policy:?} {pct}");
            let sums = Slowdown::of(&run.seconds, &all.seconds).sums;
            assert!(sums >= last, "{policy:?} at {pct} %: {sums} after {last}");
            last = sums;
        }
        assert!(last > 1.1, "{policy:?}: {last}");
    }
}

#[test]
fn a_policy_spills_only_where_it_may() {
    let jobs = jobs(3);
    let peak = run(&jobs, Policy::Block, None).peak_blocks * conditions().block;
    let at = |policy| run(&jobs, policy, Some(peak / 5));
    let (pool, reserved, ours) = (at(Policy::Static), at(Policy::JobPeak), at(Policy::Block));
    assert!(pool.disk_written == 0 && pool.object_written > 0);
    assert!(reserved.object_written == 0 && reserved.disk_written > 0);
    assert!(ours.disk_written > 0);
    // Unused reservations waste memory.
    assert!(reserved.mean() < ours.mean(), "{} {}", reserved.mean(), ours.mean());
}

#[test]
fn transfers_are_their_share_of_the_time_after_one_calibration() {
    let jobs = jobs(1);
    let bare = Setup::of(Policy::Block);
    let compute = simulate(&jobs, conditions(), bare).compute_for_share();
    let run = simulate(&jobs, conditions(), Setup { compute, ..bare });
    let share = run.transfer_share();
    assert!((share / TRANSFER_SHARE - 1.0).abs() < 0.1, "{share}");
}

/// Little's law: bytes alive are bytes written per second times the seconds that a byte lives.
#[test]
fn bytes_alive_are_the_rate_times_their_lives() {
    let jobs = jobs(1);
    let run = run(&jobs, Policy::Block, None);
    let alive: f64 = jobs
        .iter()
        .map(|job| {
            let profile = job.profile(COST);
            profile.mean * profile.seconds
        })
        .sum();
    let lives = alive / run.written as f64;
    let rate = run.written as f64 / run.window;
    let by_law = rate * lives;
    assert!((run.mean() / by_law - 1.0).abs() < 0.15, "{} and {by_law}", run.mean());
}

#[test]
fn the_same_run_twice_is_the_same() {
    let jobs = jobs(4);
    let (one, two) =
        (run(&jobs, Policy::Block, Some(8 << 20)), run(&jobs, Policy::Block, Some(8 << 20)));
    assert_eq!((one.seconds, one.disk_written), (two.seconds, two.disk_written));
}

#[test]
fn slowdowns_are_of_jobs() {
    let base = [1.0; 20];
    let mut took = [2.0; 20];
    took[0] = 42.0;
    let slowdown = Slowdown::of(&took, &base);
    assert_eq!((slowdown.mean, slowdown.p95, slowdown.sums), (4.0, 2.0, 4.0));
    took[1] = 3.0;
    assert_eq!(Slowdown::of(&took, &base).p95, 3.0);
}
