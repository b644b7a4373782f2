//! A list that mostly has one element or none.
//!
//! Knows: that the first needs no memory of its own.
//! Must not know: what is listed.

/// A list.
#[derive(Clone, Debug, Default)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Vec<T>),
}

impl<T> std::ops::Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> std::ops::DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::None => &mut [],
            Self::One(one) => std::slice::from_mut(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, element: T) {
        self.insert(self.len(), element);
    }

    /// Puts an element before the one at `at`, or at the end.
    pub(super) fn insert(&mut self, at: usize, element: T) {
        match std::mem::take(self) {
            Self::None => *self = Self::One(element),
            Self::One(one) => {
                *self = Self::Many(match at {
                    0 => vec![element, one],
                    _ => vec![one, element],
                });
            }
            Self::Many(mut many) => {
                many.insert(at.min(many.len()), element);
                *self = Self::Many(many);
            }
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        match self {
            Self::None => {}
            Self::One(one) if keep(one) => {}
            Self::One(_) => *self = Self::None,
            Self::Many(many) => {
                many.retain(keep);
                if many.len() < 2 {
                    *self = many.pop().map_or(Self::None, Self::One);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn elements_are_where_they_were_put() {
        let mut few = Few::default();
        assert!(few.is_empty());
        few.push(5);
        few.insert(0, 4);
        few.insert(9, 7);
        few.insert(2, 6);
        assert_eq!(*few, [4, 5, 6, 7]);
        few.retain(|n| n % 2 == 0);
        assert_eq!(*few, [4, 6]);
        few.retain(|n| *n == 6);
        assert!(matches!(few, Few::One(6)));
        few.retain(|n| *n == 6);
        assert_eq!(*few, [6]);
        few[0] = 1;
        few.retain(|n| *n == 6);
        assert!(few.is_empty());
    }
}
