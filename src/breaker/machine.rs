//! Which machine a breaker has.

use std::time::Duration;

use super::{
    engine::{Change, Engine, Gate, Settings},
    figures::{Counts, Health},
    hystrix,
    word::Word,
};

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in each breaker, behind an `Arc`"
)]
pub(super) enum Machine {
    /// Judged as each call ends.
    Ours(Engine),
    /// Judged on health ticks.
    Hystrix(hystrix::Engine),
}

macro_rules! either {
    ($machine:expr, $engine:ident => $do:expr) => {
        match $machine {
            Machine::Ours($engine) => $do,
            Machine::Hystrix($engine) => $do,
        }
    };
}

impl Machine {
    pub(super) fn new(settings: Settings) -> Self {
        match settings.hystrix {
            None => Machine::Ours(Engine::new(settings)),
            Some((release, interval)) => Machine::Hystrix(hystrix::Engine::new(settings, release, interval)),
        }
    }

    /// Takes over what can change while calls go on. The windows are kept.
    pub(super) fn set(&self, settings: &Settings) {
        either!(self, engine => engine.set(settings));
    }

    pub(super) fn word(&self) -> Word {
        either!(self, engine => engine.word())
    }

    /// The word of a call that is let through where it would be rejected.
    pub(super) fn bystander(&self) -> Word {
        either!(self, engine => engine.bystander())
    }

    pub(super) fn probe_lease(&self) -> Duration {
        either!(self, engine => engine.probe_lease())
    }

    pub(super) fn take_probe(&self, now: impl Fn() -> u64) -> Result<Change, Gate> {
        either!(self, engine => engine.take_probe(now))
    }

    pub(super) fn cancel(&self, admitted: Word, lane: usize) {
        either!(self, engine => engine.cancel(admitted, lane));
    }

    pub(super) fn reset(&self, now: u64) -> Option<Change> {
        either!(self, engine => engine.reset(now))
    }

    pub(super) fn force(&self, force: u64) -> Option<Change> {
        either!(self, engine => engine.force(force))
    }

    pub(super) fn set_enabled(&self, enabled: bool, now: u64) -> Option<Change> {
        either!(self, engine => engine.set_enabled(enabled, now))
    }

    pub(super) fn note_rejected(&self, lane: usize) {
        either!(self, engine => engine.note_rejected(lane));
    }

    pub(super) fn health(&self, now: u64) -> Health {
        either!(self, engine => engine.health(now))
    }

    pub(super) fn counts(&self, now: u64) -> Counts {
        either!(self, engine => engine.counts(now))
    }
}
