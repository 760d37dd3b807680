//! Timers that fire although the work beside them uses up its share of the thread.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep};

/// Is the time over? Until then the task is woken when it is.
///
/// A tokio timer is never ready for a task that has used up its cooperative budget, and work that does so in each poll
/// would never be ended. So the clock is asked as well.
#[allow(dead_code, reason = "used by layers, which are features")]
pub(crate) fn poll_timer(timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
    let due = timer.deadline();
    if timer.poll(cx).is_ready() || due <= Instant::now() {
        Poll::Ready(())
    } else {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, sleep, sleep_until};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_at_its_time_and_not_before() {
        let began = Instant::now();
        let mut timer = Box::pin(sleep_until(began + Duration::from_secs(1)));
        std::future::poll_fn(|cx| poll_timer(timer.as_mut(), cx)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_ready_for_a_task_without_budget() {
        let mut timer = Box::pin(sleep(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        std::future::poll_fn(|cx| {
            while tokio::task::coop::poll_proceed(cx)
                .map(|budget| budget.made_progress())
                .is_ready()
            {}
            assert!(timer.as_mut().poll(cx).is_pending(), "tokio's own is not");
            poll_timer(timer.as_mut(), cx)
        })
        .await;
    }
}
