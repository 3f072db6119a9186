# Writes lua/*.lua as string constants: ${output} defines a std::string_view for each file, named
# like the file.
function(tidegate_embed_lua directory output)
  file(GLOB scripts CONFIGURE_DEPENDS ${directory}/*.lua)
  set(text "// Made from lua/*.lua by the build.\n#pragma once\n#include <string_view>\nnamespace tidegate::redis::lua {\n")
  foreach(script IN LISTS scripts)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
    get_filename_component(name ${script} NAME_WE)
    file(READ ${script} body)
    string(APPEND text "inline constexpr std::string_view ${name} = R\"LUA(${body})LUA\";\n")
  endforeach()
  string(APPEND text "}  // namespace tidegate::redis::lua\n")
  file(CONFIGURE OUTPUT ${output} CONTENT "${text}" @ONLY)
endfunction()
