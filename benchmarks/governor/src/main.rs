//! Measures a keyed decision of `governor` with its DashMap store: nanoseconds per check by a
//! `String` key, with its own clock, as JSON on standard output.
//!
//!     cargo run --release --locked -- [--quick] [--rounds N] [--calls N]
//!
//! Subjects are timed in turn in every round; figures are medians over rounds.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::exit;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::middleware::StateInformationMiddleware;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

const HOT_KEYS: usize = 1_000;

struct Options {
    rounds: usize,
    calls: usize,
}

fn usage() -> ! {
    eprintln!("usage: governor-bench [--quick] [--rounds N] [--calls N]");
    exit(2)
}

fn parse_options() -> Options {
    let mut options = Options {
        rounds: 21,
        calls: 2_000_000,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || match arguments.next().map(|text| text.parse::<usize>()) {
            Some(Ok(number)) if number > 0 => number,
            _ => usage(),
        };
        match argument.as_str() {
            "--rounds" => options.rounds = number(),
            "--calls" => options.calls = number(),
            "--quick" => {
                options = Options {
                    rounds: 5,
                    calls: 200_000,
                }
            }
            _ => usage(),
        }
    }
    options
}

/// Keys of 13 bytes, as in benchmarks/cpp.
fn keys_of(thread: usize) -> Vec<String> {
    (0..HOT_KEYS)
        .map(|i| format!("user:{:08}", thread * HOT_KEYS + i))
        .collect()
}

/// A quota so high that no call is refused: a key is checked some ten thousand times a second.
fn plenty() -> Quota {
    Quota::per_second(NonZeroU32::new(1_000_000).expect("not zero"))
}

/// A quota so low that every call but the first of a key is refused.
fn scarcely() -> Quota {
    Quota::per_hour(NonZeroU32::MIN)
}

struct Timed {
    ns: f64,
    allowed: usize,
}

/// Calls `check` about `calls` times, with each key in turn.
fn time_loop(keys: &[String], calls: usize, mut check: impl FnMut(&String) -> bool) -> Timed {
    let passes = calls.div_ceil(keys.len());
    let mut allowed = 0;
    let start = Instant::now();
    for _ in 0..passes {
        for key in keys {
            allowed += usize::from(black_box(check(black_box(key))));
        }
    }
    let done = passes * keys.len();
    Timed {
        ns: start.elapsed().as_nanos() as f64 / done as f64,
        allowed: allowed * 100 / done,
    }
}

/// Two threads, each with its own keys: nanoseconds of wall time per decision of either.
fn time_two_threads(limiters: [&DefaultKeyedRateLimiter<String>; 2], calls: usize) -> f64 {
    let passes = calls.div_ceil(HOT_KEYS);
    let barrier = Barrier::new(2);
    let run = |thread: usize| {
        let (limiter, keys) = (limiters[thread], keys_of(thread));
        for key in &keys {
            let _ = black_box(limiter.check_key(key));
        }
        barrier.wait();
        let start = Instant::now();
        for _ in 0..passes {
            for key in &keys {
                let _ = black_box(limiter.check_key(black_box(key)));
            }
        }
        (start, Instant::now())
    };
    let spans = thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let mine = run(0);
        [mine, other.join().expect("the other thread")]
    });
    let start = spans.iter().map(|span| span.0).min().expect("two spans");
    let end = spans.iter().map(|span| span.1).max().expect("two spans");
    end.duration_since(start).as_nanos() as f64 / (2 * passes * HOT_KEYS) as f64
}

fn time_clock<T>(calls: usize, now: impl Fn() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(now());
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    if samples.len() % 2 == 1 {
        samples[middle]
    } else {
        (samples[middle - 1] + samples[middle]) / 2.0
    }
}

fn main() {
    let options = parse_options();
    let keys = keys_of(0);
    let allowing = RateLimiter::dashmap(plenty());
    let telling = RateLimiter::dashmap(plenty()).with_middleware::<StateInformationMiddleware>();
    let refusing = RateLimiter::dashmap(scarcely());
    let shared = RateLimiter::dashmap(plenty());
    // The threads share nothing, which is the most that two threads can reach on this machine.
    let apart = [plenty(), plenty()].map(RateLimiter::dashmap);
    let clock = DefaultClock::default();

    let allow = |key: &String| allowing.check_key(key).is_ok();
    let tell = |key: &String| match telling.check_key(key) {
        Ok(snapshot) => black_box(snapshot.remaining_burst_capacity()) > 0,
        Err(_) => false,
    };
    let refuse = |key: &String| refusing.check_key(key).is_ok();
    let refuse_and_tell = |key: &String| match refusing.check_key(key) {
        Ok(()) => true,
        Err(refusal) => black_box(refusal.wait_time_from(clock.now())) < Duration::ZERO,
    };
    for key in &keys {
        let _ = (allow(key), tell(key), refuse(key));
    }

    let mut samples: [Vec<f64>; 8] = Default::default();
    let mut shares = [0; 4];
    for _ in 0..options.rounds {
        let timed = [
            time_loop(&keys, options.calls, allow),
            time_loop(&keys, options.calls, tell),
            time_loop(&keys, options.calls, refuse),
            time_loop(&keys, options.calls, refuse_and_tell),
        ];
        for (i, one) in timed.iter().enumerate() {
            samples[i].push(one.ns);
            shares[i] = one.allowed;
        }
        samples[4].push(time_two_threads([&shared, &shared], options.calls));
        samples[5].push(time_two_threads([&apart[0], &apart[1]], options.calls));
        samples[6].push(time_clock(options.calls, || clock.now()));
        samples[7].push(time_clock(options.calls, Instant::now));
    }
    let [allow_ns, tell_ns, refuse_ns, refuse_tell_ns, two_ns, apart_ns, quanta_ns, instant_ns] =
        samples.map(median);

    println!("{{");
    println!("  \"bench\": \"governor\",");
    println!("  \"governor\": \"0.10.4\",");
    println!("  \"store\": \"DashMap, String keys\",");
    println!("  \"hot_keys\": {HOT_KEYS},");
    println!("  \"rounds\": {},", options.rounds);
    println!("  \"calls_a_round\": {},", options.calls);
    println!("  \"check_ns\": {allow_ns:.2},");
    println!("  \"check_allowed_percent\": {},", shares[0]);
    println!("  \"check_with_remaining_ns\": {tell_ns:.2},");
    println!("  \"check_with_remaining_allowed_percent\": {},", shares[1]);
    println!("  \"refused_ns\": {refuse_ns:.2},");
    println!("  \"refused_allowed_percent\": {},", shares[2]);
    println!("  \"refused_with_wait_ns\": {refuse_tell_ns:.2},");
    println!("  \"refused_with_wait_allowed_percent\": {},", shares[3]);
    println!("  \"two_threads_ns\": {two_ns:.2},");
    println!("  \"two_threads_speedup\": {:.3},", allow_ns / two_ns);
    println!(
        "  \"two_threads_nothing_shared_speedup\": {:.3},",
        allow_ns / apart_ns
    );
    println!("  \"clock_ns\": {quanta_ns:.2},");
    println!("  \"std_instant_ns\": {instant_ns:.2}");
    println!("}}");
}
