//! How much room is kept for those to come, however many have gone.

/// So many, and an eighth for those to come.
pub(super) fn with_room(len: usize) -> usize {
    len + len / 8 + 1
}
