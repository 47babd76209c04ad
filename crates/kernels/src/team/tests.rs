use super::*;

#[test]
fn every_thread_runs_once_per_run() {
    for n_threads in [1, 2, 3, 8] {
        let team = ThreadTeam::new(n_threads);
        let counts: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..200 {
            team.run(|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 200), "{counts:?}");
    }
}

#[test]
fn every_tile_is_handed_out_exactly_once() {
    let team = ThreadTeam::new(5);
    for n_tiles in [0, 1, 2, 7, 1000] {
        let counts: Vec<AtomicUsize> = (0..n_tiles).map(|_| AtomicUsize::new(0)).collect();
        let count = |tile: usize| {
            counts[tile].fetch_add(1, Ordering::Relaxed);
        };
        team.for_each_tile(n_tiles, count);
        team.for_each_tile_of_table(1, n_tiles, count);
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2), "{n_tiles}");
    }
}

#[test]
fn no_tile_is_lost_or_late_whoever_comes() {
    // More threads than cores and tiny runs: workers come early, late and not at all.
    let team = ThreadTeam::new(6);
    let sums: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    for run in 1..=5_000 {
        let add = |tile: usize| {
            // Long enough for the caller to run out of tiles while others are still at theirs.
            (0..500).for_each(|_| std::hint::spin_loop());
            sums[tile].fetch_add(run, Ordering::Relaxed);
        };
        match run % 2 {
            0 => team.for_each_tile(3, add),
            _ => team.for_each_tile_of_table(1, 3, add),
        }
        // Relaxed is enough only because the run itself orders its tiles before its return.
        let expected = run * (run + 1) / 2;
        assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == expected), "run {run}");
    }
    let n_came = AtomicUsize::new(0);
    team.run_on_whoever_comes(|_| {
        n_came.fetch_add(1, Ordering::Relaxed);
    });
    assert!((1..=6).contains(&n_came.into_inner()), "the caller always runs");
}

#[test]
fn a_panic_on_any_thread_reaches_the_caller_and_the_team_lives_on() {
    let team = ThreadTeam::new(3);
    for unlucky in 0..3 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.run(|thread| assert_ne!(thread, unlucky, "unlucky {thread}"));
        }));
        let payload = result.expect_err("the panic must reach the caller");
        let message = payload.downcast_ref::<String>().expect("a formatted message");
        assert!(message.contains(&format!("unlucky {unlucky}")), "{message}");
        let sum = AtomicUsize::new(0);
        team.run(|thread| {
            sum.fetch_add(thread, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 3);
    }
}

#[test]
fn running_a_team_from_inside_its_own_job_is_a_panic_and_not_a_deadlock() {
    let (team, other) = (ThreadTeam::new(2), ThreadTeam::new(2));
    for thread in 0..2 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            team.run(|t| {
                if t == thread {
                    team.run(|_| {});
                }
            });
        }));
        let payload = result.expect_err("the panic must reach the caller");
        let message = payload.downcast_ref::<&str>().expect("a message");
        assert!(message.contains("from inside its job"), "{message}");
    }
    let sum = AtomicUsize::new(0);
    team.run(|_| {
        other.run(|t| {
            sum.fetch_add(t + 1, Ordering::Relaxed);
        });
    });
    assert_eq!(sum.into_inner(), 6, "another team may run");
}

#[test]
fn callers_on_several_threads_are_served_one_after_another() {
    let team = ThreadTeam::new(2);
    let n_inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    team.run(|_| {
                        assert!(n_inside.fetch_add(1, Ordering::SeqCst) < 2);
                        n_inside.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        }
    });
}

/// Gives the core away until `done`.
fn wait_for(what: &str, done: impl Fn() -> bool) {
    for _ in 0..2_000_000 {
        if done() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("in vain: {what}");
}

fn n_asleep(team: &ThreadTeam) -> usize {
    team.shared.parking.iter().filter(|parking| parking.is_asleep.load(Ordering::SeqCst)).count()
}

fn n_unparks(team: &ThreadTeam) -> usize {
    team.shared.rest.n_unparks.load(Ordering::Relaxed)
}

/// Waits until idle threads have gone `n` times through the time after which they may park.
fn wait_rounds(team: &ThreadTeam, n: usize) {
    let rounds = || team.shared.rest.n_rounds.load(Ordering::Relaxed);
    let start = rounds();
    wait_for("idle rounds", || rounds() >= start + n);
}

#[test]
fn idle_workers_park_and_the_next_run_wakes_each() {
    let team = ThreadTeam::new(3);
    for _ in 0..3 {
        wait_for("both workers park", || n_asleep(&team) == 2);
        let before = n_unparks(&team);
        team.run(|_| {});
        assert!(n_unparks(&team) >= before + 2);
    }
}

#[test]
fn a_team_that_stays_awake_is_woken_once_and_then_by_no_run() {
    let team = ThreadTeam::new(3);
    wait_for("both workers park", || n_asleep(&team) == 2);
    let guard = team.stay_awake();
    team.run(|_| {});
    let before = n_unparks(&team);
    assert_eq!(before, 2, "the first run wakes both");
    for _ in 0..5 {
        wait_rounds(&team, 6);
        assert_eq!(n_asleep(&team), 0);
        team.run(|_| {});
        team.for_each_tile(4, |_| {});
    }
    assert_eq!(n_unparks(&team), before);
    drop(guard);
    wait_for("both workers park again", || n_asleep(&team) == 2);
}

#[test]
fn the_last_of_several_guards_lets_the_team_sleep() {
    let team = ThreadTeam::new(2);
    let (first, second) = (team.stay_awake(), team.stay_awake());
    team.run(|_| {});
    drop(first);
    wait_rounds(&team, 3);
    assert_eq!(n_asleep(&team), 0, "one guard lives");
    drop(second);
    wait_for("the worker parks", || n_asleep(&team) == 1);
}

#[test]
fn a_leaked_guard_costs_spinning_and_nothing_else() {
    let team = ThreadTeam::new(2);
    std::mem::forget(team.stay_awake());
    let sum = AtomicUsize::new(0);
    for _ in 0..100 {
        team.run(|thread| {
            sum.fetch_add(thread, Ordering::Relaxed);
        });
    }
    wait_rounds(&team, 3);
    assert_eq!((sum.into_inner(), n_asleep(&team)), (100, 0));
    drop(team);
    let alone = ThreadTeam::new(1);
    let _guard = alone.stay_awake();
    alone.run(|thread| assert_eq!(thread, 0));
}

#[test]
fn many_more_threads_than_cores_finish_although_they_stay_awake() {
    let team = ThreadTeam::new(24);
    let _guard = team.stay_awake();
    let n_runs = AtomicUsize::new(0);
    for _ in 0..50 {
        team.run(|_| {
            n_runs.fetch_add(1, Ordering::Relaxed);
        });
        team.for_each_tile(48, |_| {
            n_runs.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(n_runs.into_inner(), 50 * (24 + 48));
}

#[test]
fn runs_go_on_when_the_epoch_returns_to_zero() {
    let team = ThreadTeam::behind(Doors::shortly_before_the_epoch_returns(4), 3);
    let n_runs = AtomicUsize::new(0);
    for run in 1..=8 {
        team.run(|_| {
            n_runs.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n_runs.load(Ordering::Relaxed), 3 * run);
    }
    assert!(team.shared.doors.look().epoch() < 8, "the epoch went through 0");
}

#[test]
fn a_team_may_end_while_its_workers_are_late() {
    for n_threads in [2, 5] {
        for _ in 0..200 {
            let team = ThreadTeam::new(n_threads);
            team.run_on_whoever_comes(|_| {});
            drop(team);
        }
        drop(ThreadTeam::new(n_threads));
    }
}

#[test]
fn runs_of_everybody_and_of_some_follow_each_other_from_several_callers() {
    let team = ThreadTeam::new(4);
    let (n_all, n_tiles) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for caller in 0..3 {
            let (team, n_all, n_tiles) = (&team, &n_all, &n_tiles);
            scope.spawn(move || {
                for i in 0..200 {
                    let _guard = (i % 5 == caller).then(|| team.stay_awake());
                    let mut mine = [0_usize; 7];
                    let places: Vec<AtomicUsize> = mine.iter().map(|_| 0.into()).collect();
                    team.for_each_tile(7, |tile| {
                        places[tile].fetch_add(tile + i, Ordering::Relaxed);
                        n_tiles.fetch_add(1, Ordering::Relaxed);
                    });
                    for (mine, place) in mine.iter_mut().zip(places) {
                        *mine = place.into_inner();
                    }
                    assert_eq!(mine, std::array::from_fn(|tile| tile + i));
                    team.run(|_| {
                        n_all.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!((n_all.into_inner(), n_tiles.into_inner()), (3 * 200 * 4, 3 * 200 * 7));
}

#[test]
fn turns_exclude_each_other_and_come_in_the_order_in_which_they_are_asked_for() {
    let team = ThreadTeam::new(2);
    let order = Mutex::new(Vec::new());
    let first = team.turn();
    std::thread::scope(|scope| {
        for user in 0..4 {
            let (team, order) = (&team, &order);
            scope.spawn(move || {
                let _turn = team.turn();
                order.lock().expect("no panic").push(user);
                let n_before = order.lock().expect("no panic").len();
                team.run(|_| {});
                assert_eq!(order.lock().expect("no panic").len(), n_before, "nobody else came");
            });
            wait_for("the user waits", || team.shared.turns.n_waiting() == user + 1);
        }
        assert!(order.lock().expect("no panic").is_empty(), "the first turn has not ended");
        drop(first);
    });
    assert_eq!(order.into_inner().expect("no panic"), [0, 1, 2, 3]);
}

#[test]
fn a_turn_keeps_the_team_awake_and_ends_with_a_panic() {
    let team = ThreadTeam::new(2);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _turn = team.turn();
        team.run(|_| {});
        wait_rounds(&team, 3);
        assert_eq!(n_asleep(&team), 0);
        std::panic::panic_any("a pass that fails");
    }));
    assert_eq!(result.expect_err("it panics").downcast_ref(), Some(&"a pass that fails"));
    wait_for("the worker parks", || n_asleep(&team) == 1);
    drop(team.turn());
}

#[test]
#[should_panic(expected = "one turn with a team at a time")]
fn a_thread_that_would_wait_for_its_own_turn_panics() {
    let team = ThreadTeam::new(1);
    let _turn = team.turn();
    let _second = team.turn();
}

#[test]
fn a_run_without_a_turn_does_not_wait_for_one() {
    let team = ThreadTeam::new(2);
    let _turn = team.turn();
    std::thread::scope(|scope| {
        scope.spawn(|| team.run(|_| {})).join().expect("it ran");
    });
}
