//! Numbered places that are reused.

/// Values by dense index; a freed index is given out again, last freed first.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: u32,
    len: usize,
}

#[derive(Debug)]
pub(super) enum Place<T> {
    Full(T),
    /// The next free index, or `NONE`.
    Empty(u32),
}

const NONE: u32 = u32::MAX;

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        let index = self.free;
        if let Some(place) = self.places.get_mut(index as usize)
            && let Place::Empty(next) = *place
        {
            self.free = next;
            *place = Place::Full(value);
            return index;
        }
        self.places.push(Place::Full(value));
        self.places.len() as u32 - 1
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let place = self.places.get_mut(index as usize)?;
        if matches!(place, Place::Empty(_)) {
            return None;
        }
        let old = core::mem::replace(place, Place::Empty(self.free));
        self.free = index;
        self.len -= 1;
        match old {
            Place::Full(value) => Some(value),
            Place::Empty(_) => None,
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.places.get(index as usize) {
            Some(Place::Full(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.places.get_mut(index as usize) {
            Some(Place::Full(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| match place {
            Place::Full(value) => Some((index as u32, value)),
            Place::Empty(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn freed_places_are_reused_and_stale_indices_find_nothing() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(a), Some("a"));
        assert_eq!(slab.remove(a), None);
        assert_eq!((slab.get(a), slab.get(b)), (None, Some(&"b")));
        assert_eq!(slab.insert("c"), a);
        assert_eq!(slab.insert("d"), 2);
        assert_eq!(slab.iter().map(|(_, value)| *value).collect::<String>(), "cbd");
        assert_eq!(slab.len(), 3);
    }
}
