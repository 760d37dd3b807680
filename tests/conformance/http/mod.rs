//! Feign, Ribbon and the nest of all, on real loopback sockets.
//!
//! Each case is told three times in one form: by its [recording](told), by a small model of the Java libraries (the
//! [oracle]), and by [playing](play) it through this crate's stack against servers that do what its script says.
//! The recording must be what the model tells of Java, in all that was recorded; what was played must be what the
//! model tells with its switches as they are in this crate. The deviations of a case are the switches that change what
//! the model tells. Where none does, what was played is held against the recording itself.

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
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
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

/// How often a case is played again at most, if the machine was late.
const AGAIN: usize = 3;

/// What all levels play on.
struct Stage {
    runtime: Runtime,
    places: Arc<Semaphore>,
    watch: Watch,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let watch = runtime.block_on(async { Watch::begin() });
    Stage {
        runtime,
        places: Arc::new(Semaphore::new(AT_ONCE)),
        watch,
    }
});

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
        let given = Given::by(&recorded);
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

    fn compare(&self, played: &Played) -> Vec<String> {
        let mut differences = played.contradictions.clone();
        let ours = tell(&self.case, Ways::OURS, &Given::by(&played.told));
        differences.extend(compare::played(&played.told, &ours));
        if self.deviations.is_empty() {
            let mut recorded = self.recorded.clone();
            // A pause up to a date hangs on the time of day. The oracle knows how long it may have been.
            recorded.sleeps.clone_from(&ours.sleeps);
            let directly = compare::recorded(self.transport, &played.told, &recorded);
            differences.extend(
                directly
                    .into_iter()
                    .map(|difference| format!("recorded otherwise, {difference}")),
            );
        }
        differences
    }
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
    let mut report = Report::new(level);
    let mut scripts = Vec::new();
    for case in of_levels(&[level]) {
        match catch_unwind(AssertUnwindSafe(|| Script::of(case.clone()))) {
            Ok(script) => scripts.push(Arc::new(script)),
            Err(panic) => {
                let why = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .unwrap_or_else(|| "not understood".to_owned());
                report.add(&case, Outcome::Differs(vec![why]));
            }
        }
    }
    fastrand::shuffle(&mut scripts);
    let stage = &*STAGE;
    let playing: Vec<_> = scripts
        .iter()
        .map(|script| {
            let script = Arc::clone(script);
            stage.runtime.spawn(async move {
                let _place = stage.places.acquire().await;
                play_to_the_end(&script).await
            })
        })
        .collect();
    for (script, playing) in scripts.iter().zip(playing) {
        let (mut differences, late) = stage
            .runtime
            .block_on(playing)
            .unwrap_or_else(|panic| (vec![panic.to_string()], None));
        if let Some(late) = late {
            println!("{}: {late}", script.case.id());
        }
        differences.splice(0..0, script.misread.iter().cloned());
        report.add(&script.case, Outcome::of(script.deviations.clone(), differences));
    }
    report.conclude();
}

/// What differs, and a word on the runs that do not count because the machine was late.
async fn play_to_the_end(script: &Arc<Script>) -> (Vec<String>, Option<String>) {
    let starts = Given::by(&script.recorded).started;
    let mut late = None;
    for again in 0..=AGAIN {
        let played = match play(&script.case, &starts).await {
            Ok(played) => played,
            Err(error) => return (vec![format!("not played: {error}")], late),
        };
        let by = STAGE.watch.late_within(played.begun, played.ended);
        let compared = {
            let script = Arc::clone(script);
            tokio::task::spawn_blocking(move || script.compare(&played)).await
        };
        let differences = compared.unwrap_or_else(|panic| vec![panic.to_string()]);
        match by {
            Some(by) if !differences.is_empty() && again < AGAIN => {
                late = Some(format!(
                    "played again {} times, the machine was late by {by:?}",
                    again + 1
                ));
            }
            _ => return (differences, late),
        }
    }
    unreachable!("the last run returns")
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
