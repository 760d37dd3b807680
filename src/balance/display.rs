//! What a balancer knows of its endpoints, each on a line, for people.

use std::fmt;

use super::{figures::Figures, handle::EndpointFigures};
use crate::call::Veto;

/// `3 in flight, 120 ok, 2 failed, 1 abandoned, mean 12.3ms`. What is seldom (ignored, abandoned, connection failures in a
/// row) is left out where there is none of it, and the mean response time where nothing has completed.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ok, failed) = (self.successes(), self.failures());
        write!(f, "{} in flight, {ok} ok, {failed} failed", self.in_flight())?;
        for (count, what) in [
            (self.ignored(), "ignored"),
            (self.abandoned(), "abandoned"),
            (
                self.successive_connection_failures().into(),
                "connection failures in a row",
            ),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if self.completed() > 0 {
            write!(f, ", mean {:.1?}", self.response_time_mean())?;
        }
        Ok(())
    }
}

/// `10.0.0.1:8080: 0 in flight, 120 ok, 5 failed, mean 12.3ms, ejected for 29.4s more (5 failures in a row)`: the
/// [endpoint](EndpointFigures::endpoint), its [figures](EndpointFigures::figures), and what keeps calls from it. The
/// vetoes of others than the detector of outliers are those that stand when this is written.
impl fmt::Display for EndpointFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint(), self.figures())?;
        if let Some(ejection) = self.ejection() {
            write!(f, ", {ejection}")?;
        }
        if self.is_tripped() {
            f.write_str(", tripped for Ribbon's rules")?;
        }
        let eligibility = self.endpoint().eligibility();
        for (veto, what) in [
            (Veto::Drain, "draining"),
            (Veto::Breaker, "its circuit is open"),
            (Veto::Probe, "its probes fail"),
            (Veto::NotReady, "not ready"),
            (Veto::User, "vetoed by the user"),
        ] {
            if eligibility.is_forbidden_by(veto) {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tokio::time::{Duration, Instant, advance};

    use crate::{
        balance::{BalanceHandle, OutlierEjection, Picked, Picker, RoundRobin},
        call::{Endpoints, Verdict, Veto},
    };

    const MS: Duration = Duration::from_millis(1);

    /// One after the other.
    fn picker(count: usize) -> Picker<RoundRobin> {
        let endpoints = Endpoints::from(Vec::new());
        for n in 0..count {
            endpoints.insert(format!("http://10.0.0.{n}:8080").parse().unwrap());
        }
        Picker::new(endpoints, RoundRobin::new())
    }

    fn pick(picker: &Picker<RoundRobin>) -> Picked {
        picker.pick(&Request::new(()), Instant::now()).unwrap()
    }

    fn lines(handle: &BalanceHandle) -> Vec<String> {
        handle.endpoints().iter().map(ToString::to_string).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn figures_are_a_line_without_what_did_not_happen() {
        let picker = picker(1);
        let handle = picker.handle();
        assert_eq!(lines(&handle), ["10.0.0.0:8080: 0 in flight, 0 ok, 0 failed"]);
        let open = [pick(&picker), pick(&picker)];
        for (verdict, took) in [(Verdict::Success, 10 * MS), (Verdict::Failure, 14 * MS + MS / 2)] {
            pick(&picker).end(verdict, Instant::now() + took);
        }
        let line = "2 in flight, 1 ok, 1 failed, mean 12.2ms";
        assert_eq!(handle.total().to_string(), line);
        for one in open {
            one.abandon(Instant::now());
        }
        pick(&picker).end(Verdict::Ignored, Instant::now());
        pick(&picker).connection_failed(Instant::now());
        assert_eq!(
            handle.total().to_string(),
            "0 in flight, 1 ok, 2 failed, 1 ignored, 2 abandoned, 1 connection failures in a row, mean 6.1ms"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_of_an_endpoint_says_what_keeps_calls_from_it() {
        let outliers = OutlierEjection::builder().consecutive_failures(2).jitter(0.0);
        let picker = picker(2).outliers(outliers.build().unwrap());
        let handle = picker.handle();
        for _ in 0..2 {
            pick(&picker).end(Verdict::Failure, Instant::now());
            pick(&picker).end(Verdict::Success, Instant::now());
        }
        let ejected = |more| {
            format!("10.0.0.0:8080: 0 in flight, 0 ok, 2 failed, mean 0.0ns, {more} (2 failures in a row)")
        };
        let now = || lines(&handle).swap_remove(0);
        assert_eq!(now(), ejected("ejected for 30.0s more"));
        advance(20 * 1_000 * MS).await;
        assert_eq!(now(), ejected("ejected for 10.0s more"));
        advance(10 * 1_000 * MS).await;
        assert_eq!(now(), ejected("ejected until the next pick"));
        let probes = [pick(&picker), pick(&picker)];
        assert!(
            now().ends_with("ejected and being probed (2 failures in a row)"),
            "{}",
            now()
        );
        drop(probes);
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_of_an_endpoint_names_each_veto() {
        let picker = picker(1);
        let handle = picker.handle();
        let one = handle.endpoints().swap_remove(0);
        for (veto, what) in [
            (Veto::Drain, "draining"),
            (Veto::Breaker, "its circuit is open"),
            (Veto::Probe, "its probes fail"),
            (Veto::NotReady, "not ready"),
            (Veto::User, "vetoed by the user"),
        ] {
            one.endpoint().eligibility().forbid(veto);
            assert_eq!(
                one.to_string(),
                format!("10.0.0.0:8080: 0 in flight, 0 ok, 0 failed, {what}")
            );
            one.endpoint().eligibility().allow(veto);
        }
        for _ in 0..3 {
            pick(&picker).connection_failed(Instant::now());
        }
        assert!(lines(&handle)[0].ends_with(", tripped for Ribbon's rules"));
    }

    #[test]
    fn a_handle_is_as_short_to_debug_with_ten_thousand_endpoints_as_with_one() {
        let debugged = |count| format!("{:?}", picker(count).handle());
        let many = debugged(10_000);
        assert!(many.contains("len: 10000") && many.len() < 150, "{many}");
    }
}
