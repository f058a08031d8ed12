//! A bound on the number of rewrites, for finding the first one at fault by bisection.

/// What is left of [`Options::fuel`](crate::Options::fuel).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuel {
    left: Option<u64>,
}

impl Fuel {
    pub(crate) fn new(limit: Option<u64>) -> Fuel {
        Fuel { left: limit }
    }

    /// Whether there is none left.
    pub(crate) fn is_spent(self) -> bool {
        self.left == Some(0)
    }

    /// Takes the fuel for one rewrite that is done.
    pub(crate) fn spend(&mut self) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
        }
    }
}
