//! What the servers on sockets do with an attempt that the plan has an act for.

use std::time::Duration;

use bytes::Bytes;
use http::Method;

use super::server::{Door, End, Manner, Protocol, Script};
use crate::schedule::{Act, Dice, Plan};

/// The answers and the misbehavior of all servers of a run.
pub struct ByPlan {
    pub seed: u64,
    /// Of the servers by their number.
    pub protocols: Vec<Protocol>,
    /// Servers from this number on let nobody in.
    pub doors: usize,
}

/// The body of every answer to this call.
pub fn answer(seed: u64, call: u64) -> Bytes {
    let mut dice = Dice::new(seed ^ 0x616e, call, 2);
    let length = 10 + dice.below(700);
    (0..length).map(|_| dice.next() as u8).collect()
}

impl Script for ByPlan {
    fn door(&self, server: usize, connection: u64) -> Door {
        let mut dice = Dice::new(self.seed ^ 0x646f, connection, 3);
        let end = match dice.below(3) {
            0 => End::Close,
            1 => End::Half,
            _ => End::Reset,
        };
        match dice.below(64) {
            _ if server >= self.doors => Door::AtOnce(end),
            0 => Door::AtOnce(end),
            1 => Door::FirstBytes(end),
            _ => Door::Open,
        }
    }

    fn manner(&self, server: usize, call: u64, attempt: usize) -> Manner {
        let plan = Plan::of(self.seed, call);
        let mut dice = Dice::new(self.seed ^ 0x6d61, call, attempt as u64);
        let is_http2 = self.protocols[server] == Protocol::Http2;
        // One stream takes its whole connection with it, and all others there: not too often.
        let spares = is_http2 && dice.below(4) != 0;
        let end = if dice.below(2) == 0 { End::Close } else { End::Half };
        // Its head is all of an answer to HEAD.
        let act = match plan.act(attempt) {
            Act::StallMidResponse if plan.method == Method::HEAD => Act::StallBeforeHead,
            Act::CloseMidResponse if plan.method == Method::HEAD => Act::CloseAfterRequest,
            act => act,
        };
        match act {
            Act::Answer if spares => Manner::Answer,
            Act::Answer => answers(&mut dice),
            // Only those that went astray, which nobody answers, or whose turn it is not: they are answered.
            Act::Refuse | Act::StallConnect | Act::CloseUnused | Act::CloseUnread => Manner::Answer,
            Act::EarlyUnavailable => Manner::Early(503),
            Act::StallBeforeHead => Manner::Stall,
            Act::StallMidResponse => Manner::StallInResponse,
            Act::RefusedStream => Manner::Refuse,
            Act::ResetStream => Manner::Cancel,
            Act::CloseAfterHead if spares => Manner::Refuse,
            Act::CloseMidBody | Act::CloseAfterRequest | Act::ResetAfterRequest | Act::CloseMidResponse
                if spares =>
            {
                Manner::Cancel
            }
            Act::CloseAfterHead => Manner::AfterHead(end),
            Act::CloseMidBody => Manner::MidBody(End::Reset),
            Act::CloseAfterRequest => Manner::AfterRequest(end),
            Act::ResetAfterRequest => Manner::AfterRequest(End::Reset),
            Act::CloseMidResponse if dice.below(2) == 0 => Manner::MidResponse(End::Reset),
            Act::CloseMidResponse => Manner::MidResponse(end),
            Act::GoAwayExcluding => Manner::GoAwayBefore,
            Act::GoAwayIncluding => Manner::GoAwayBehind,
            act => match act.status() {
                Some((status, after)) => Manner::Status(status, after),
                None => Manner::Answer,
            },
        }
    }

    fn answer(&self, call: u64) -> Bytes {
        answer(self.seed, call)
    }
}

/// Answers, some of them late, and some the last of their connections: those are closed when the next request may be on
/// its way.
fn answers(dice: &mut Dice) -> Manner {
    let end = match dice.below(3) {
        0 => End::Close,
        1 => End::Half,
        _ => End::Reset,
    };
    match dice.below(16) {
        0..=2 => Manner::AnswerThen(end, Duration::ZERO),
        3 | 4 => Manner::AnswerThen(end, Duration::from_micros(dice.below(3000))),
        5 => Manner::Late(Duration::from_millis(1 + dice.below(70))),
        _ => Manner::Answer,
    }
}
