//! Which Spring Cloud is meant.

use std::{fmt, time::Duration};

use super::Limits;

/// A release train of Spring Cloud, by which some defaults and rules differ. Default: [`Edgware`](SpringRelease::Edgware).
///
/// | | Dalston | Edgware | Finchley, Greenwich | Hoxton |
/// | --- | --- | --- | --- | --- |
/// | `ribbon.ConnectTimeout`, `ribbon.ReadTimeout` | 2 s, 5 s | 1 s, 1 s | 1 s, 1 s | 1 s, 1 s |
/// | `feign.client.config.*` | not read | read | read | read |
/// | its two timeouts act | | if both are in one block | if both are in one block | as soon as there is a block; what it leaves out is 10 s, 60 s |
/// | Hystrix | 1.5.12 | 1.5.12 | 1.5.18 | 1.5.18 |
///
/// Hoxton means its last service releases: the rule on the timeouts came with spring-cloud-openfeign 2.2.4.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SpringRelease {
    /// spring-cloud-netflix 1.3, of 2017.
    Dalston,
    /// spring-cloud-netflix 1.4, of 2017.
    #[default]
    Edgware,
    /// spring-cloud-netflix 2.0, of 2018.
    Finchley,
    /// spring-cloud-netflix 2.1, of 2019.
    Greenwich,
    /// spring-cloud-netflix 2.2, of 2019 and 2020; the last one with Ribbon and Hystrix.
    Hoxton,
}

impl SpringRelease {
    /// Ribbon's limits where nothing is set.
    pub(super) fn ribbon_limits(self) -> Limits {
        let (connect, read) = match self {
            SpringRelease::Dalston => (2, 5),
            _ => (1, 1),
        };
        Limits {
            connect: Duration::from_secs(connect),
            read: Duration::from_secs(read),
        }
    }

    /// Is the block `feign.client.config` read at all?
    pub(super) fn reads_feign_config(self) -> bool {
        self != SpringRelease::Dalston
    }

    /// Does a block of Feign's settings replace the request options even if it has no timeouts?
    pub(super) fn any_block_is_options(self) -> bool {
        self >= SpringRelease::Hoxton
    }
}

impl fmt::Display for SpringRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            SpringRelease::Dalston => "Dalston",
            SpringRelease::Edgware => "Edgware",
            SpringRelease::Finchley => "Finchley",
            SpringRelease::Greenwich => "Greenwich",
            SpringRelease::Hoxton => "Hoxton",
        })
    }
}
