//! Feign, Ribbon and the nest of all, on real loopback sockets.
//!
//! Each case is told three times in one form: by its [recording](told), by a small model of the Java libraries (the
//! [oracle]), and by [playing](play) it through this crate's stack against servers that do what its script says.
//! The recording must be what the model tells of Java, in all that was recorded; what was played must be what the
//! model tells with its switches as they are in this crate. The deviations of a case are the switches that change what
//! the model tells. Where none does, what was played is held against the recording itself.
//!
//! What hangs on real time is handed to the model: when each call began, how long its work took beyond its waits, how
//! long a pause up to a date was. A case is played again only for a reason that is shown and printed: the [machine was
//! late](watch), or a few milliseconds fell to the other side of a tick of the circuit, which the model tells.
//!
//! # Narrower checks
//!
//! * With the transports of Java a broken connection has one name for three, and how often the JDK's client sends again
//!   after a reset is a matter of chance: up to once for each attempt.
//! * A pause up to a date with whole seconds is right within what is cut off; where it is above its cap it is exact.
//! * Times of a recording may be 120 ms off, and a step from one attempt to the next 60 ms, as its machine was busy at times.
//!
//! # What it notices
//!
//! The layers were broken on purpose, one thing at a time. Cases named `random` are counted.
//!
//! | broken | cases that fail |
//! | --- | --- |
//! | pauses grow by 2.0 in place of 1.5 | 122: all with a pause of the retryer; 28 random |
//! | Ribbon retries all idempotent methods as GET | `ribbon-` and `nest-` with HEAD, PUT or DELETE, a timeout, and no `ok_true`; 13 random |
//! | volume `>=` made `>` | 44 of `nest`: `circuit-get-hystrix_timeout-x5`, `circuit-get-read_timeout-x8`, five of `lifecycle-`; 37 random |
//! | sleep window inclusive | none: no real clock meets it to the millisecond; the level `hystrix` does |
//!
//! Of 2,988 recordings in which one value each was altered, 5 passed: where a name or a number is one of the narrower
//! checks, and a flag that was not compared then.

mod backend;
mod compare;
#[cfg(test)]
mod deviating;
mod oracle;
mod play;
mod recorder;
mod script;
mod settings;
mod stack;
mod told;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::{runtime::Runtime, sync::Semaphore};

use self::{
    oracle::{Given, Ways, tell},
    play::{Played, play},
    script::{calls, servers},
    settings::{Settings, Transport},
    told::Told,
    watch::Watch,
};
use crate::{
    case::{Case, of_levels},
    deviations::Deviation,
    report::{Outcome, Report},
};

/// How many cases are played at once. They mostly sleep.
const AT_ONCE: usize = 40;

/// The pause between the beginnings of two cases: short ones are busy all the time, and must not crowd.
const APART: Duration = Duration::from_millis(10);

/// How often a case is played again at most, if there is a reason to.
const AGAIN: usize = 4;

/// A while in which a machine that was late may calm down.
const CALM: Duration = Duration::from_millis(400);

const LEVELS: [&str; 3] = ["feign", "ribbon", "nest"];

/// A case that was read; or one that is not understood, and why.
type Read = Result<Arc<Script>, (Case, String)>;

/// What all levels play on.
struct Stage {
    runtime: Runtime,
    places: Arc<Semaphore>,
    /// Held by the case that begins.
    entrance: tokio::sync::Mutex<()>,
    watch: Watch,
    /// The cases of each level. All are read before the first one is played, which would suffer from it.
    levels: BTreeMap<&'static str, Vec<Read>>,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let watch = runtime.block_on(Watch::begin()).unwrap();
    Stage {
        runtime,
        places: Arc::new(Semaphore::new(AT_ONCE)),
        entrance: tokio::sync::Mutex::default(),
        watch,
        levels: LEVELS.map(|level| (level, read(level))).into(),
    }
});

/// The cases of a level, and why one is not understood.
fn read(level: &str) -> Vec<Read> {
    let cases = of_levels(&[level]).into_iter();
    cases
        .map(|case| {
            catch_unwind(AssertUnwindSafe(|| Arc::new(Script::of(case.clone())))).map_err(|panic| {
                let why = panic.downcast_ref::<String>().cloned();
                (case, why.unwrap_or_else(|| "not understood".to_owned()))
            })
        })
        .collect()
}

/// A case before it is played.
struct Script {
    case: Case,
    transport: Transport,
    recorded: Told,
    deviations: BTreeSet<Deviation>,
    /// Where the recording is not what the oracle tells of Java.
    misread: Vec<String>,
}

impl Script {
    fn of(case: Case) -> Script {
        let recorded = Told::recorded(&case);
        let given = Given::recorded(&recorded);
        let java = tell(&case, Ways::JAVA, &given);
        let gap = calls(&case).gap;
        let settings = Settings::of(&case);
        let misread = compare::recording(&settings, &servers(&case), gap, &recorded, &java);
        let mut deviations = effective(&case, &given, &java);
        if settings.transport == Transport::Jdk && recorded.arrivals.len() > java.arrivals.len() {
            // After a reset the JDK's client sends again by chance.
            deviations.insert(Deviation::NoHiddenResends);
        }
        Script {
            case,
            transport: settings.transport,
            recorded,
            deviations,
            misread,
        }
    }

    /// What was wrong with a run.
    fn judge(&self, played: &Played, late: Option<Duration>) -> Judgement {
        let apart = if late.is_some() {
            compare::APART_WHEN_BUSY
        } else {
            compare::APART
        };
        let ours = tell(&self.case, Ways::OURS, &Given::played(&played.told));
        let mut differences = played.contradictions.clone();
        differences.extend(compare::played(&played.told, &ours, apart));
        let by_the_clock = Given {
            sleeps: played.told.sleeps.clone(),
            ..Given::recorded(&self.recorded)
        };
        let by_the_clock = tell(&self.case, Ways::OURS, &by_the_clock);
        if differences.is_empty() && compare::otherwise(&ours, &by_the_clock) {
            // All as it had to be at these times, and yet not what was recorded.
            let differences =
                vec!["it turns on a few milliseconds, and they fell otherwise each time".to_owned()];
            return Judgement {
                differences,
                again: Some("a few milliseconds fell otherwise".to_owned()),
            };
        }
        if self.deviations.is_empty() {
            let mut recorded = compare::call_by_call(self.transport, &self.recorded);
            // A pause up to a date hangs on the time of day. The oracle knows how long it may have been.
            recorded.sleeps.clone_from(&ours.sleeps);
            let told = compare::call_by_call(self.transport, &played.told);
            let directly = compare::played(&told, &recorded, compare::APART_WHEN_BUSY);
            differences.extend(
                directly
                    .into_iter()
                    .map(|difference| format!("recorded otherwise, {difference}")),
            );
        }
        Judgement {
            differences,
            again: late.map(|by| format!("the machine was late by {by:?}")),
        }
    }
}

/// What was wrong with a run, and why it may be played again if something was.
struct Judgement {
    differences: Vec<String>,
    again: Option<String>,
}

/// The switches that change what the oracle tells.
fn effective(case: &Case, given: &Given, java: &Told) -> BTreeSet<Deviation> {
    let ours = tell(case, Ways::OURS, given);
    if ours == *java {
        return BTreeSet::new();
    }
    let switches = Ways::SWITCHES.into_iter();
    switches
        .filter(|switch| {
            tell(case, Ways::JAVA.with(*switch, true), given) != *java
                || tell(case, Ways::OURS.with(*switch, false), given) != ours
        })
        .collect()
}

/// Plays the cases of a level, many at once, in an order that is another one each time.
fn replay(level: &'static str) {
    let stage = &*STAGE;
    let mut report = Report::new(level);
    let mut scripts = Vec::new();
    for read in &stage.levels[level] {
        match read {
            Ok(script) => scripts.push(Arc::clone(script)),
            Err((case, why)) => report.add(case, Outcome::Differs(vec![why.clone()])),
        }
    }
    fastrand::shuffle(&mut scripts);
    let playing: Vec<_> = scripts
        .iter()
        .map(|script| stage.runtime.spawn(play_to_the_end(Arc::clone(script))))
        .collect();
    for (script, playing) in scripts.iter().zip(playing) {
        let differences = match stage.runtime.block_on(playing) {
            Ok((differences, before)) => {
                for why in before {
                    println!("{}: played again, {why}", script.case.id());
                }
                differences
            }
            Err(panic) => vec![panic.to_string()],
        };
        report.add(&script.case, Outcome::of(script.deviations.clone(), differences));
    }
    report.conclude();
}

/// What differs; and why there were runs that do not count.
async fn play_to_the_end(script: Arc<Script>) -> (Vec<String>, Vec<String>) {
    if !script.misread.is_empty() {
        return (script.misread.clone(), Vec::new());
    }
    let _place = STAGE.places.acquire().await;
    let starts = Given::recorded(&script.recorded).started;
    let mut before = Vec::new();
    loop {
        {
            let _entered = STAGE.entrance.lock().await;
            tokio::time::sleep(APART).await;
        }
        let played = match play(&script.case, &starts).await {
            Ok(played) => played,
            Err(error) => return (vec![format!("not played: {error}")], before),
        };
        let late = STAGE.watch.late_within(played.begun, played.ended);
        let judged = {
            let script = Arc::clone(&script);
            tokio::task::spawn_blocking(move || script.judge(&played, late)).await
        };
        let Judgement { differences, again } = match judged {
            Ok(judgement) => judgement,
            Err(panic) => return (vec![panic.to_string()], before),
        };
        match again {
            Some(why) if !differences.is_empty() && before.len() < AGAIN => before.push(why),
            _ => return (differences, before),
        }
        tokio::time::sleep(CALM).await;
    }
}

#[test]
fn feign() {
    replay("feign");
}

#[test]
fn ribbon() {
    replay("ribbon");
}

#[test]
fn nest() {
    replay("nest");
}
