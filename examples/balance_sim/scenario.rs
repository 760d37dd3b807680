//! What the servers have to put up with.

/// The names, for the command line.
pub(crate) const NAMES: [&str; 9] = [
    "homog", "antag", "hetero", "few", "slow", "gray", "burst", "join", "calm",
];

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Of the mean capacity of all servers.
    pub(crate) load: f64,
    pub(crate) clients: usize,
    pub(crate) servers: usize,
    /// Servers of different speeds.
    pub(crate) uneven: bool,
    /// Each server is slow by a factor now and then; the mean seconds that it is well, and slow.
    pub(crate) antagonists: Option<(f64, f64, f64)>,
    /// So many servers become slow by a factor for the time of the event.
    pub(crate) slow: Option<(usize, f64)>,
    /// So many servers fail for that time.
    pub(crate) failing: usize,
    /// So many servers join, and are slow by a factor for some seconds.
    pub(crate) joining: usize,
    pub(crate) cold_speed: f64,
    pub(crate) cold_for: f64,
    /// Seconds before measuring begins, and of measuring.
    pub(crate) warm_up: f64,
    pub(crate) measured: f64,
}

impl Scenario {
    pub(crate) fn new(name: &str, load: f64) -> Option<Self> {
        let mut scenario = Scenario {
            name: NAMES.into_iter().find(|known| *known == name)?,
            load,
            clients: 50,
            servers: 100,
            uneven: false,
            antagonists: None,
            slow: None,
            failing: 0,
            joining: 0,
            cold_speed: 0.3,
            cold_for: 3.0,
            warm_up: 12.0,
            measured: 20.0,
        };
        let antagonists = Some((0.4, 8.0, 2.0));
        match name {
            // Nothing happens, but the time in which it would is looked at.
            "homog" | "calm" => {}
            "antag" => scenario.antagonists = antagonists,
            "hetero" => {
                scenario.uneven = true;
                scenario.antagonists = antagonists;
            }
            "few" => {
                (scenario.clients, scenario.servers) = (5, 40);
                scenario.antagonists = antagonists;
            }
            "slow" => scenario.slow = Some((5, 0.1)),
            "gray" => scenario.slow = Some((20, 0.25)),
            "burst" => scenario.failing = 5,
            "join" => scenario.joining = 10,
            _ => return None,
        }
        Some(scenario)
    }

    /// Half of all, in less time.
    pub(crate) fn shortly(mut self) -> Self {
        self.clients /= 2;
        self.servers /= 2;
        self.failing /= 2;
        if let Some((servers, _)) = &mut self.slow {
            *servers /= 2;
        }
        (self.warm_up, self.measured) = (3.0, 5.0);
        self
    }

    /// The loads at which it is run if nothing else is said.
    pub(crate) fn loads(name: &str) -> &'static [f64] {
        match name {
            "slow" | "gray" | "burst" | "join" | "calm" => &[0.7],
            "homog" | "few" => &[0.7, 0.9],
            _ => &[0.7, 0.8, 0.9],
        }
    }

    pub(crate) fn speed(&self, server: usize) -> f64 {
        match server % 5 {
            0 if self.uneven => 0.6,
            4 if self.uneven => 1.4,
            _ => 1.0,
        }
    }

    /// On average over time.
    pub(crate) fn antagonist_speed(&self) -> f64 {
        self.antagonists
            .map_or(1.0, |(slow, well, ill)| (well + ill * slow) / (well + ill))
    }

    pub(crate) fn slow_speed(&self) -> f64 {
        self.slow.map_or(1.0, |(_, speed)| speed)
    }

    /// How many servers the event is about.
    pub(crate) fn in_event(&self) -> usize {
        match self.slow {
            Some((servers, _)) => servers,
            None => self.failing.max(self.joining),
        }
    }

    pub(crate) fn is_in_event(&self, server: usize) -> bool {
        match self.in_event() {
            0 => false,
            joining if self.joining > 0 => server < joining,
            some => server % (self.servers / some) == 1,
        }
    }
}
