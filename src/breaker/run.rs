//! Failures in a row.

use super::sync::{AtomicU64, SeqCst};

const COUNT: u32 = 48;
const COUNT_MASK: u64 = (1 << COUNT) - 1;

/// How many failures there were since the latest success: `generation: 16 | count: 48`, from the top. The count of
/// another generation is no count, so a circuit that has closed begins anew without a write.
#[derive(Debug)]
pub(super) struct Run(AtomicU64);

impl Run {
    pub(super) fn new() -> Self {
        Run(AtomicU64::new(0))
    }

    /// One more. Says how many that makes.
    pub(super) fn failure(&self, generation: u16) -> u64 {
        let stamp = u64::from(generation) << COUNT;
        let mut seen = self.0.load(SeqCst);
        loop {
            let next = match seen & !COUNT_MASK {
                own if own == stamp => seen + 1,
                other if is_later(other >> COUNT, generation) => return 0,
                _ => stamp | 1,
            };
            match self.0.compare_exchange_weak(seen, next, SeqCst, SeqCst) {
                Ok(_) => return next & COUNT_MASK,
                Err(now) => seen = now,
            }
        }
    }

    /// Begins anew, whatever the generation is.
    pub(super) fn begin_anew(&self) {
        let mut seen = self.0.load(SeqCst);
        while let Err(now) = self
            .0
            .compare_exchange_weak(seen, seen & !COUNT_MASK, SeqCst, SeqCst)
        {
            seen = now;
        }
    }

    /// Begins anew. Where there was no failure nothing is written.
    #[inline]
    pub(super) fn success(&self, generation: u16) {
        let stamp = u64::from(generation) << COUNT;
        let mut seen = self.0.load(SeqCst);
        while seen & !COUNT_MASK == stamp && seen != stamp {
            match self.0.compare_exchange_weak(seen, stamp, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// How many generations a word may be ahead of a thread that was held up.
const AHEAD: u16 = 64;

/// Is this generation after that one? They wrap, and a word can lie untouched for half of all generations, so only a
/// little ahead is ahead.
pub(super) fn is_later(seen: u64, generation: u16) -> bool {
    (1..=AHEAD).contains(&(seen as u16).wrapping_sub(generation))
}

#[cfg(test)]
#[cfg(not(outbound_loom))]
mod tests {
    use super::*;

    #[test]
    fn a_success_or_a_new_generation_begins_the_row_anew() {
        let run = Run::new();
        assert_eq!([(); 3].map(|()| run.failure(0)), [1, 2, 3]);
        run.success(0);
        assert_eq!(run.failure(0), 1);
        assert_eq!(run.failure(1), 1);
        run.success(0);
        assert_eq!(run.failure(0), 0, "a thread that was held up");
        assert_eq!(run.failure(1), 2);
    }
}
