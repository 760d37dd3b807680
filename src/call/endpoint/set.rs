//! The live set of endpoints.
