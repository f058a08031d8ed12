//! Buffers of a run: what they hold at first, and where they lie.
//!
//! A `; mem:` directive describes a buffer:
//!
//! ```text
//! ; mem: p0 = 64 bytes 01 02 ff 8: p1+16
//! ```
//!
//! The size, then the contents: two hex digits are a byte, `N:` moves to offset N, `pK`, `pK+N` and
//! `oob` are an 8-byte little-endian address. The rest is zero.

use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};

/// Size of a page of all supported hosts, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Inaccessible space before, between and after buffers, in bytes.
const GUARD_BYTES: u64 = 16 * PAGE_BYTES;
/// Upper bound of one buffer's size, in bytes.
const BUFFER_BYTES_MAX: u64 = 1 << 20;

/// An address that a run is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// What it points into.
    pub target: PointerTarget,
    /// Distance from the target's start, in bytes.
    pub offset: i64,
}

/// What a [`Pointer`] points into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PointerTarget {
    /// The buffer of this name.
    Buffer(String),
    /// Inaccessible memory.
    OutOfBounds,
}

impl Pointer {
    /// Parses `p0`, `p0+8`, `p0-8`, `oob`, `oob+8`; `None` if the text is no pointer.
    pub(crate) fn parse(text: &str) -> Option<Pointer> {
        let split = text.find(['+', '-']).unwrap_or(text.len());
        let (name, offset) = text.split_at(split);
        let offset = match offset.strip_prefix('+').unwrap_or(offset) {
            "" => 0,
            digits => digits.parse().ok()?,
        };
        let target = match name {
            "oob" => PointerTarget::OutOfBounds,
            _ if is_buffer_name(name) => PointerTarget::Buffer(name.to_string()),
            _ => return None,
        };
        Some(Pointer { target, offset })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            PointerTarget::Buffer(name) => f.write_str(name)?,
            PointerTarget::OutOfBounds => f.write_str("oob")?,
        }
        match self.offset {
            0 => Ok(()),
            offset => write!(f, "{offset:+}"),
        }
    }
}

/// Whether `name` is `p` and a number.
pub(crate) fn is_buffer_name(name: &str) -> bool {
    name.strip_prefix('p')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// A buffer and what it holds at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name, `p` and a number.
    pub name: String,
    /// Its bytes; those of a pointer are overwritten.
    pub bytes: Vec<u8>,
    /// Addresses in it, at their offsets.
    pub pointers: Vec<(usize, Pointer)>,
}

impl Buffer {
    /// Parses what follows `; mem:`.
    ///
    /// # Errors
    /// The text is not in the form that the module's documentation gives.
    pub fn parse(text: &str) -> Result<Buffer> {
        let (name, rest) = text
            .split_once('=')
            .context("expected 'pN = SIZE bytes ...'")?;
        let name = name.trim();
        ensure!(
            is_buffer_name(name),
            "'{name}' is not a buffer name (p0, p1, ...)"
        );
        let mut words = rest.split_whitespace();
        let size = words.next().unwrap_or_default();
        let size: u64 = size
            .parse()
            .with_context(|| format!("'{size}' is not a size in bytes"))?;
        ensure!(
            size <= BUFFER_BYTES_MAX,
            "{name} is larger than {BUFFER_BYTES_MAX} bytes"
        );
        ensure!(
            words.next() == Some("bytes"),
            "expected 'bytes' after the size of {name}"
        );
        let mut buffer = Buffer {
            name: name.to_string(),
            bytes: vec![0; usize::try_from(size)?],
            pointers: Vec::new(),
        };
        buffer.fill(words)?;
        Ok(buffer)
    }

    fn fill<'a>(&mut self, words: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut cursor = 0;
        for word in words {
            if let Some(offset) = word.strip_suffix(':') {
                cursor = offset
                    .parse()
                    .with_context(|| format!("'{word}': expected an offset"))?;
                continue;
            }
            let width = if let Some(pointer) = Pointer::parse(word) {
                self.pointers.push((cursor, pointer));
                8
            } else {
                let byte = parse_byte(word)?;
                if let Some(slot) = self.bytes.get_mut(cursor) {
                    *slot = byte;
                }
                1
            };
            cursor += width;
            ensure!(
                cursor <= self.bytes.len(),
                "'{word}' lies outside the {} bytes of {}",
                self.bytes.len(),
                self.name
            );
        }
        Ok(())
    }
}

/// Parses two hex digits.
pub(crate) fn parse_byte(word: &str) -> Result<u8> {
    match u8::from_str_radix(word, 16) {
        Ok(byte) if word.len() == 2 => Ok(byte),
        _ => bail!("'{word}': expected a byte as two hex digits, 'N:' or a pointer"),
    }
}

/// Where a buffer lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Its first accessible page, as an address.
    pub(crate) pages: u64,
    /// Length of its accessible pages, in bytes.
    pub(crate) page_bytes: u64,
    /// Its own first byte, as an address: it ends where its pages end.
    pub(crate) start: u64,
}

/// Where the buffers of a run lie in one stretch of address space.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Length of the whole stretch, in bytes.
    pub(crate) length: u64,
    /// One for each buffer.
    pub(crate) placements: Vec<Placement>,
    oob: u64,
}

impl Layout {
    /// Bytes of address space that `buffers` need.
    pub(crate) fn length_of(buffers: &[Buffer]) -> u64 {
        Layout::at(0, buffers).length
    }

    /// Places `buffers` from the address `base`.
    pub(crate) fn at(base: u64, buffers: &[Buffer]) -> Layout {
        let mut cursor = base + GUARD_BYTES;
        let mut placements = Vec::new();
        for buffer in buffers {
            let size = buffer.bytes.len() as u64;
            let page_bytes = size.next_multiple_of(PAGE_BYTES);
            placements.push(Placement {
                pages: cursor,
                page_bytes,
                start: cursor + page_bytes - size,
            });
            cursor += page_bytes + GUARD_BYTES;
        }
        Layout {
            length: cursor + GUARD_BYTES - base,
            placements,
            oob: cursor,
        }
    }

    /// The address that `pointer` stands for.
    pub(crate) fn resolve(&self, buffers: &[Buffer], pointer: &Pointer) -> Result<u64> {
        let start = match &pointer.target {
            PointerTarget::OutOfBounds => self.oob,
            PointerTarget::Buffer(name) => {
                let index = buffer_index(buffers, name)?;
                self.placements[index].start
            }
        };
        Ok(start.wrapping_add_signed(pointer.offset))
    }

    /// What the accessible pages of each buffer hold at first.
    pub(crate) fn images(&self, buffers: &[Buffer]) -> Result<Vec<Vec<u8>>> {
        buffers
            .iter()
            .zip(&self.placements)
            .map(|(buffer, placement)| {
                let mut bytes = buffer.bytes.clone();
                for (offset, pointer) in &buffer.pointers {
                    let address = self.resolve(buffers, pointer)?;
                    bytes[*offset..*offset + 8].copy_from_slice(&address.to_le_bytes());
                }
                let mut image = vec![0; usize::try_from(placement.start - placement.pages)?];
                image.extend(bytes);
                Ok(image)
            })
            .collect()
    }
}

/// The index of the buffer called `name`.
pub(crate) fn buffer_index(buffers: &[Buffer], name: &str) -> Result<usize> {
    buffers
        .iter()
        .position(|buffer| buffer.name == name)
        .with_context(|| format!("buffer {name} has no '; mem:' line"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_parse() {
        let buffer = Buffer::parse("p0 = 24 bytes 01 ff 8: p1+16 oob").unwrap();
        assert_eq!(buffer.bytes[..3], [1, 0xff, 0]);
        let pointers: Vec<_> = buffer
            .pointers
            .iter()
            .map(|(at, pointer)| format!("{at}:{pointer}"))
            .collect();
        assert_eq!(pointers, ["8:p1+16", "16:oob"]);
    }

    #[test]
    fn bad_buffers_say_why() {
        let error = |text| Buffer::parse(text).unwrap_err().to_string();
        assert!(error("x = 4 bytes").contains("'x' is not a buffer name"));
        assert!(error("p0 = 4 bytes 00 01 02 03 04").contains("'04' lies outside the 4 bytes"));
        assert!(error("p0 = 4 bytes p1").contains("'p1' lies outside"));
        assert!(error("p0 = 4 bytes 123").contains("two hex digits"));
        assert!(error("p0 = four bytes").contains("'four' is not a size"));
    }

    #[test]
    fn buffers_end_at_a_guard() {
        let buffers = [
            Buffer::parse("p0 = 5 bytes 01").unwrap(),
            Buffer::parse("p1 = 8 bytes p0+1").unwrap(),
        ];
        let layout = Layout::at(0x10000, &buffers);
        let first = &layout.placements[0];
        assert_eq!(first.start + 5, first.pages + first.page_bytes);
        let images = layout.images(&buffers).unwrap();
        assert_eq!(images[0][PAGE_BYTES as usize - 5], 1);
        let pointer = &images[1][PAGE_BYTES as usize - 8..];
        assert_eq!(pointer, (first.start + 1).to_le_bytes());
    }
}
