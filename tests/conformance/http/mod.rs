//! Feign, Ribbon and the nest of all, on real loopback sockets.

mod oracle;
mod script;
mod settings;
mod told;

#[test]
fn scan() {
    let mut bad = 0;
    for case in crate::case::of_levels(&["feign", "ribbon", "nest"]) {
        let recorded = told::Told::recorded(&case);
        let given = oracle::Given::by(&recorded);
        let java = oracle::tell(&case, oracle::Ways::JAVA, &given);
        if std::env::var("SHOW").is_ok_and(|id| id == case.id()) {
            println!("{recorded:#?}\n{java:#?}");
        }
        let strip = |t: &told::Told| {
            let mut t = t.clone();
            t.total = 0;
            for a in &mut t.attempts { a.start = 0; a.end = None; }
            for a in &mut t.arrivals { a.at = 0; }
            for a in &mut t.calls { a.started = 0; a.returned = 0; }
            for a in &mut t.executions { a.at = 0; }
            t
        };
        let (a, b) = (strip(&recorded), strip(&java));
        let mut d = vec![];
        if a.attempts != b.attempts { d.push("attempts"); }
        if a.arrivals != b.arrivals { d.push("arrivals"); }
        if a.calls != b.calls { d.push("calls"); }
        if a.sleeps != b.sleeps { d.push("sleeps"); }
        if a.stats != b.stats { d.push("stats"); }
        if a.ribbon_error != b.ribbon_error { d.push("ribbon_error"); }
        if a.breaker != b.breaker { d.push("breaker"); }
        if a.executions != b.executions { d.push("executions"); }
        if a.causes != b.causes { d.push("causes"); }
        if !d.is_empty() { bad += 1; println!("{} {d:?}", case.id()); }
        for (r, j) in recorded.attempts.iter().zip(&java.attempts) {
            println!("TIME {} {} {}", case.id(), r.start as i64 - j.start as i64, (r.end.unwrap_or(0) as i64 - r.start as i64) - (j.end.unwrap_or(0) as i64 - j.start as i64));
        }
    }
    println!("bad {bad}");
}
