//! A service's state for each connection of its loop.

use super::ConnId;

/// A table by connection, with access in one step whatever its size. Places of closed connections
/// are reused, so its length is the maximum number of concurrent connections.
#[derive(Debug)]
pub struct ByConn<T>(Vec<Option<(ConnId, T)>>);

impl<T> Default for ByConn<T> {
    fn default() -> Self {
        ByConn(Vec::new())
    }
}

impl<T> ByConn<T> {
    /// Adds an entry, or replaces the connection's earlier one. An entry of another connection at
    /// the same place is obsolete: the loop reuses a place only after the service was notified.
    pub fn insert(&mut self, id: ConnId, value: T) {
        let place = id.index();
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place] = Some((id, value));
    }

    /// The entry of a connection.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        match self.0.get_mut(id.index())? {
            Some((of, value)) if *of == id => Some(value),
            _ => None,
        }
    }

    /// Removes the entry of a connection and returns it.
    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        self.0.get_mut(id.index())?.take_if(|(of, _)| *of == id).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_past_finds_nothing() {
        let mut table = ByConn::default();
        let (old, new) = (ConnId::new(3, 7), ConnId::new(3, 8));
        table.insert(old, "old");
        assert_eq!(table.get_mut(new), None);
        assert_eq!(table.remove(new), None);
        assert_eq!(table.remove(old), Some("old"));
        table.insert(new, "new");
        assert_eq!(table.get_mut(old), None);
        assert_eq!(table.get_mut(new), Some(&mut "new"));
    }
}
