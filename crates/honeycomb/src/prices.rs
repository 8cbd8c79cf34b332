//! What using the cluster costs, as the setting `prices` says.

use serde_json::{Value, json};

/// Names of prices, and what they are for.
const NAMES: &str =
    "memory (of a gigabyte for an hour), moved (of a gigabyte from one server to another)";

/// Prices in any unit of money.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Of a gigabyte of memory for an hour.
    memory: f64,
    /// Of a gigabyte that goes to another server.
    moved: f64,
}

impl Prices {
    /// Reads `memory=0.008`.
    pub fn parse(text: &str) -> Result<Prices, String> {
        let (mut memory, mut moved) = (None, 0.0);
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, price) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not a price such as memory=0.008"))?;
            let price = match price.trim().parse::<f64>() {
                Ok(price) if price.is_finite() && price >= 0.0 => price,
                _ => return Err(format!("the price '{price}' is not a number of 0 or more")),
            };
            match name.trim() {
                "memory" => memory = Some(price),
                "moved" => moved = price,
                other => return Err(format!("'{other}' has no price; prices are: {NAMES}")),
            }
        }
        memory
            .map(|memory| Prices { memory, moved })
            .ok_or_else(|| "the price of memory is missing, such as memory=0.008".to_owned())
    }

    /// What so many gigabyte-seconds of memory cost.
    pub fn memory(&self, gb_seconds: f64) -> f64 {
        self.memory * gb_seconds / 3600.0
    }

    /// What it costs that so many bytes went to other servers.
    pub fn moved(&self, bytes: u64) -> f64 {
        self.moved * bytes as f64 / 1e9
    }

    /// As JSON has them.
    pub fn json(&self) -> Value {
        json!({ "memory": self.memory, "moved": self.moved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_wrong_ones_refused() {
        let prices = Prices::parse("memory = 3.6").unwrap();
        assert!((prices.memory(1000.0) - 1.0).abs() < 1e-12);
        let prices = Prices::parse("memory=0, moved=2").unwrap();
        assert!((prices.moved(500_000_000) - 1.0).abs() < 1e-12);
        for wrong in ["", "memory", "memory=-1", "memory=much", "gold=1", "memory=inf"] {
            assert!(Prices::parse(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
