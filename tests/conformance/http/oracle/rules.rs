//! Ribbon's rules, as far as they do not draw lots.

use super::ribbon::Books;
use crate::http::settings::Rule;

/// A rule and its positions.
pub(super) struct Choice {
    rule: Rule,
    /// Of the round robin, which steps first.
    cycle: usize,
    /// Of the round robin over a filtered list, which steps after.
    filtered: usize,
}

impl Choice {
    pub(super) fn new(rule: Rule) -> Choice {
        Choice {
            rule,
            cycle: 0,
            filtered: 0,
        }
    }

    pub(super) fn next(&mut self, books: &[Books], now: u64) -> Option<usize> {
        if books.is_empty() {
            return None;
        }
        let available = |server: &usize| !books[*server].tripped(now);
        Some(match self.rule {
            Rule::RoundRobin => self.round_robin(books.len()),
            Rule::ZoneAvoidance => self.round_robin_filtered(books.len(), available),
            Rule::AvailabilityFiltering => {
                let mut server = self.round_robin(books.len());
                for _ in 0..11 {
                    if available(&server) {
                        return Some(server);
                    }
                    server = self.round_robin(books.len());
                }
                self.round_robin_filtered(books.len(), available)
            }
            Rule::BestAvailable => {
                let best = (0..books.len())
                    .filter(available)
                    .min_by_key(|server| books[*server].active);
                match best {
                    Some(server) => server,
                    None => self.round_robin(books.len()),
                }
            }
        })
    }

    fn round_robin(&mut self, servers: usize) -> usize {
        self.cycle = (self.cycle + 1) % servers;
        self.cycle
    }

    fn round_robin_filtered(&mut self, servers: usize, available: impl Fn(&usize) -> bool) -> usize {
        let mut left: Vec<_> = (0..servers).filter(available).collect();
        if left.is_empty() {
            left = (0..servers).collect();
        }
        loop {
            let position = self.filtered;
            self.filtered = (position + 1) % left.len();
            // Positions outside of the list are stepped over.
            if let Some(server) = left.get(position) {
                return *server;
            }
        }
    }
}
