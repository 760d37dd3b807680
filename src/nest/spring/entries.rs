//! The pairs that were given, read.

use indexmap::IndexMap;

use super::{
    Reason, Remark, SpringError,
    keys::{Family, Found, Known, Meaning, find},
    value::{Isolation, Value},
};
use crate::{balance::RibbonRule, call::StatusSet};

/// All pairs, by key, in the order in which the keys came first. Of several values the last one counts.
///
/// This is where another source ends: a file, or names that Spring relaxes, become pairs under the names that
/// [`find`] knows, and nothing further on changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Entries {
    entries: IndexMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    text: String,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// It can be acted on.
    Read(Known, Value),
    /// It cannot, whatever else is set.
    Unread(Reason),
}

/// The block of Feign's settings, or of Hystrix's, that holds for all.
pub(super) const SHARED: &str = "default";

impl Entries {
    pub(super) fn read<K, V>(
        client: &str,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, SpringError>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let mut entries = IndexMap::new();
        for (key, text) in pairs {
            let (key, text) = (key.into(), text.into());
            let state = State::of(&key, &text, client)?;
            entries.insert(key, Entry { text, state });
        }
        Ok(Entries { entries })
    }

    fn value(&self, key: &str) -> Option<&Value> {
        match &self.entries.get(key)?.state {
            State::Read(_, value) => Some(value),
            State::Unread(_) => None,
        }
    }

    /// The value as it was given.
    pub(super) fn text(&self, key: &str) -> &str {
        self.entries.get(key).map_or("", |entry| &entry.text)
    }

    pub(super) fn number(&self, key: &str) -> Option<i64> {
        match self.value(key) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// A number that is not negative.
    pub(super) fn count(&self, key: &str) -> Option<u32> {
        self.number(key).and_then(|number| number.try_into().ok())
    }

    pub(super) fn decimal(&self, key: &str) -> Option<f64> {
        match self.value(key) {
            Some(Value::Decimal(number)) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        match self.value(key) {
            Some(Value::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    pub(super) fn statuses(&self, key: &str) -> Option<StatusSet> {
        match self.value(key) {
            Some(Value::Statuses(statuses)) => Some(*statuses),
            _ => None,
        }
    }

    pub(super) fn list(&self, key: &str) -> Option<&[String]> {
        match self.value(key) {
            Some(Value::List(list)) => Some(list),
            _ => None,
        }
    }

    pub(super) fn name(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn rule(&self, key: &str) -> Option<RibbonRule> {
        match self.value(key) {
            Some(Value::Rule(rule)) => Some(*rule),
            _ => None,
        }
    }

    pub(super) fn isolation(&self, key: &str) -> Option<Isolation> {
        match self.value(key) {
            Some(Value::Isolation(isolation)) => Some(*isolation),
            _ => None,
        }
    }

    /// Is there a key with this beginning that can be acted on?
    pub(super) fn any_below(&self, beginning: &str) -> bool {
        self.entries.keys().any(|key| key.starts_with(beginning))
    }

    /// What the keys of this family are about.
    pub(super) fn about(&self, family: Family) -> impl Iterator<Item = &str> {
        self.entries.values().filter_map(move |entry| match &entry.state {
            State::Read(known, _) if known.family == family => Some(&*known.about),
            _ => None,
        })
    }

    /// The keys that do nothing: those that cannot, and those of which this says so.
    pub(super) fn remarks(&self, idle: impl Fn(&str, &Known) -> Option<Reason>) -> Vec<Remark> {
        let mut remarks = Vec::new();
        for (key, entry) in &self.entries {
            let reason = match &entry.state {
                State::Unread(reason) => Some(reason.clone()),
                State::Read(known, _) => idle(key, known),
            };
            if let Some(reason) = reason {
                remarks.push(Remark::new(key, &entry.text, reason));
            }
        }
        remarks
    }
}

impl State {
    fn of(key: &str, text: &str, client: &str) -> Result<Self, SpringError> {
        let known = match find(key, client) {
            Found::Known(known) => known,
            Found::Near(name) => return Ok(State::Unread(Reason::Misspelled { name })),
            Found::Nothing => return Ok(State::Unread(Reason::Unknown)),
        };
        if let Some(reason) = known.elsewhere(client) {
            // Its value may be right for whoever reads it: a rule of one's own, for instance.
            return Ok(State::Unread(reason));
        }
        match known.meaning {
            Meaning::Not(why) => Ok(State::Unread(Reason::NotActedOn(why))),
            Meaning::Acts(kind) => match kind.read(text) {
                Ok(value) => Ok(State::Read(known, value)),
                Err(allowed) => Err(SpringError::new(key, text, allowed)),
            },
        }
    }
}

impl Known {
    /// Why no setting of this client makes the key act.
    fn elsewhere(&self, client: &str) -> Option<Reason> {
        match self.family {
            Family::Ribbon if self.about.is_empty() => {
                let per_client = "Spring reads it for each client alone, as in \
                                  `orders.ribbon.NFLoadBalancerRuleClassName`";
                let limit =
                    "Ribbon reads it for each client alone, as in `orders.ribbon.ActiveConnectionsLimit`";
                match self.name {
                    "NFLoadBalancerRuleClassName" => Some(Reason::WithoutEffect(per_client)),
                    "ActiveConnectionsLimit" => Some(Reason::WithoutEffect(limit)),
                    _ => None,
                }
            }
            Family::ServerStats if self.about == SHARED => Some(Reason::WithoutEffect(
                "it is for balancers without a name; in Spring each has the name of its client",
            )),
            Family::Ribbon | Family::ServerStats | Family::Zones if self.about != client => {
                Some(Reason::OtherClient)
            }
            _ => None,
        }
    }
}
