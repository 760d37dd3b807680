//! The same promise on loopback sockets, HTTP/1 and HTTP/2, with many calls at once.
//!
//! What becomes of an attempt on a real socket is a matter of time: a server that closes an idle connection may come
//! before or after the next request. So the plan only says what is tried. What is judged is what happened: each attempt
//! counts as what its client was told, and must not have been told more than the server knows.
//!
//! ```text
//! server, http1, http2   servers that count, and end things where they are told to
//! manner                 a plan's act -> what a server does
//! log                    what the servers saw
//! client                 the clients, and the layer right above them that numbers the attempts
//! run                    many calls at once, and what came of them
//! ```

mod client;
mod http1;
mod http2;
mod log;
mod manner;
mod naive;
mod run;
mod server;

use run::{Size, run};
use tokio::time::Instant;

#[test]
fn nothing_unsafe_is_sent_twice_and_nothing_unsent_is_lost_on_sockets() {
    let started = Instant::now();
    let size = Size {
        seed: crate::seed(),
        calls: crate::calls(4_000),
        at_once: 128,
    };
    let seen = run(size, None);
    print!("{seen}");
    println!("{}", seen.report.line("on sockets", size.seed, started.elapsed()));
    seen.check();
    // All that there is to see was seen.
    assert!(seen.proved > 0 && seen.unread > 0 && !seen.leaving.is_empty());
}
